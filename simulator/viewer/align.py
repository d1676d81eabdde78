"""Two runs side by side: the moment of one that belongs to a moment of the other, by tile."""

from __future__ import annotations

import numpy as np

from .moment import Moment
from .replay import Replay
from .steps import Step


def aligned_event(run: Replay, event: int, other: Replay) -> int:
    """The event of `other` at the pair of tiles that `run` is at after `event`.

    Within a tile both runs are equally far; at the landing both are at their landing. Where `run`
    is at no pair of tiles, the same step of a kernel that both have and that works on no pairs
    counts, else the pair that comes next, as just begun.
    """
    number = run.steps.number_at(event)
    step = run.steps[number]
    if twin := _namesake(run, step, other):
        return _within(step, event, twin)
    if run.steps.is_pair[number]:
        twin = _twin(run, step, other)
        return _within(step, event, twin) if twin else len(other) - 1
    later = np.flatnonzero(run.steps.is_pair[number:])
    if not later.size:
        return len(other) - 1
    twin = _twin(run, run.steps[number + int(later[0])], other)
    return max(twin.start - 1, 0) if twin else len(other) - 1


def _namesake(run: Replay, step: Step, other: Replay) -> Step | None:
    """The same step of a kernel without pairs, in the other run's kernel of its name."""
    if run.steps.is_pair[run.steps.kernel == step.kernel].any():
        return None
    name = run.meta["kernels"][step.kernel]
    found = other.steps.of_pair(step.m_block, step.n_block)
    return next((twin for twin in found if other.meta["kernels"][twin.kernel] == name), None)


def _twin(run: Replay, step: Step, other: Replay) -> Step | None:
    """The step of `other` at the same pair: in the kernel of the same name, else in its last."""
    found = other.steps.of_pair(step.m_block, step.n_block)
    if not found:
        return None
    name = run.meta["kernels"][step.kernel]
    named = [twin for twin in found if other.meta["kernels"][twin.kernel] == name]
    return named[0] if named else found[-1]


def _within(step: Step, event: int, twin: Step) -> int:
    if event >= step.landing:
        return min(twin.landing + event - step.landing, twin.stop - 1)
    done = (event - step.start) / max(step.landing - step.start, 1)
    return twin.start + int(done * (twin.landing - twin.start))


def difference(left: Moment, right: Moment) -> str | None:
    """How far two runs of one row agree on its output so far; None before both know it."""
    mine, theirs = _output(left), _output(right)
    if left.row.row != right.row.row or mine is None or theirs is None:
        return None
    largest, scale = float(np.abs(mine - theirs).max()), float(np.abs(mine).max())
    if largest <= 1e-5 * max(scale, 1e-30):
        same = f"row {left.row.row}: both runs have the same output so far"
        alike = _divides_at_once(left) == _divides_at_once(right)
        return same if alike else f"{same}; flash2 divides O by l last"
    return f"row {left.row.row}: OUTPUTS DIFFER by {largest:.3g}"


def _output(moment: Moment) -> np.ndarray | None:
    """Leading columns of softmax(S) V over the keys seen so far."""
    row = moment.row
    if not {"O", "row_sum"} <= row.known or not row.after["row_sum"]:
        return None
    return np.asarray(row.after["O"]) / (1.0 if _divides_at_once(moment) else row.after["row_sum"])


def _divides_at_once(moment: Moment) -> bool:
    """Whether O is divided by row_sum at every tile, not at the end."""
    return moment.meta["program"].startswith("flash1")
