"""The programs: each file is a tile loop that reads like its paper's algorithm."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from . import aux_gradient, baselines, broken, flash1, flash2, standard


@dataclass(frozen=True)
class Pass:
    """One direction of a program.

    Attributes
    ----------
    run : callable
        ``run(machine)`` walks the tiles.
    lines : mapping of str to sequence of str
        Its kernels in order, each with the lines of its algorithm.
    """

    run: Callable
    lines: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Program:
    """A way to compute attention.

    Attributes
    ----------
    name, title : str
        What options and tables call it, and one line on what it is.
    forward, backward : Pass
    idealised : bool
        True if its tiles are whole matrices: SRAM has no limit, and there is no lse.
    """

    name: str
    title: str
    forward: Pass
    backward: Pass
    idealised: bool = False


PROGRAMS = {
    program.name: program
    for program in (
        Program(
            "algorithm0",
            "Standard attention, an operation at a time, without an SRAM capacity",
            Pass(baselines.algorithm0, baselines.ALGORITHM0_LINES),
            Pass(baselines.algorithm0_backward, baselines.ALGORITHM0_BACKWARD_LINES),
            idealised=True,
        ),
        Program(
            "fused_softmax",
            "Standard attention with a softmax that keeps S on chip, without an SRAM capacity",
            Pass(baselines.fused_softmax, baselines.FUSED_LINES),
            Pass(baselines.fused_softmax_backward, baselines.FUSED_BACKWARD_LINES),
            idealised=True,
        ),
        Program(
            "with_mask_and_dropout",
            "Standard attention with passes for mask and dropout, without an SRAM capacity",
            Pass(baselines.with_mask_and_dropout, baselines.MASK_DROPOUT_LINES),
            Pass(baselines.with_mask_and_dropout_backward, baselines.MASK_DROPOUT_BACKWARD_LINES),
            idealised=True,
        ),
        Program(
            "tiled",
            "Standard attention in tiles that fit SRAM: S and P in HBM, no tile skipped",
            Pass(standard.forward, standard.FORWARD_LINES),
            Pass(standard.backward, standard.BACKWARD_LINES),
        ),
        Program(
            "flash1",
            "FlashAttention-1: key tiles outside, O rewritten in HBM at every pair of tiles",
            Pass(flash1.forward, flash1.FORWARD_LINES),
            Pass(flash1.backward, flash1.BACKWARD_LINES),
        ),
        Program(
            "flash2",
            "FlashAttention-2: query tiles outside, O in registers",
            Pass(flash2.forward, flash2.FORWARD_LINES),
            Pass(flash2.backward, flash2.BACKWARD_LINES),
        ),
        Program(
            "flash2_two_kernel",
            "FlashAttention-2 with a deterministic backward of two kernels",
            Pass(flash2.forward, flash2.FORWARD_LINES),
            Pass(flash2.backward_two_kernels, flash2.TWO_KERNEL_LINES),
        ),
    )
}
"""Every program by name."""

AUX_GRADIENT = Program(
    "aux_gradient",
    "The gradient of a bias or of learned weights in the scores, after a backward pass",
    PROGRAMS["flash2"].forward,
    Pass(aux_gradient.backward, aux_gradient.LINES),
)
"""A pass by itself, which `simulator.run.simulate` takes."""

_FORWARD_BUGS = {
    "flash2_without_rescale": ("O is never rescaled", broken.without_rescale),
    "flash2_mask_off_by_one": ("the mask is off by one", broken.mask_off_by_one),
    "flash2_mask_forgotten": ("no tile is masked", broken.mask_forgotten),
    "flash2_tail_unmasked": ("the padding of the last key tile counts", broken.tail_unmasked),
}

BROKEN = {
    name: Program(
        name,
        f"FlashAttention-2, broken: {bug}",
        Pass(run, flash2.FORWARD_LINES),
        PROGRAMS["flash2"].backward,
    )
    for name, (bug, run) in _FORWARD_BUGS.items()
}
BROKEN["flash2_without_delta"] = Program(
    "flash2_without_delta",
    "FlashAttention-2, broken: the backward forgets delta",
    PROGRAMS["flash2"].forward,
    Pass(broken.without_delta, flash2.BACKWARD_LINES),
)
"""Programs with one bug each, by name; `simulator.run.simulate` takes them too."""
