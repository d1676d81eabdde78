"""Arrays in and out of a run: checked and rounded, then split into what one machine holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flash_numba.problem import DTYPES, Problem

from .hbm import LAYOUT, Hbm

OUTPUTS = {"O": "o", "LSE": "lse", "dQ": "dq", "dK": "dk", "dV": "dv"}
"""Outputs by their names in HBM, and in `Problem.shapes`."""


def checked(
    problem: Problem, direction: str, q, k, v, do=None, dlse=None, o=None, lse=None
) -> dict[str, np.ndarray] | None:
    """The arrays that came in by name, rounded to the problem's dtype, as float32.

    None if none came in.

    Raises
    ------
    ValueError, TypeError
        If one is missing, has another shape than the problem says or does not hold floats.
    """
    backward = direction == "backward"
    given = {"q": q, "k": k, "v": v} | ({"do": do} if backward else {})
    missing = [name for name, array in given.items() if array is None]
    if len(missing) == len(given):
        return None
    if missing:
        names = " and ".join(", ".join(given).rsplit(", ", 1))
        raise ValueError(f"{names} must come together, got none for {' and '.join(missing)}")
    if backward:
        others = {"dlse": dlse, "o": o, "lse": lse}
        given |= {name: array for name, array in others.items() if array is not None}
    given = {name: np.asarray(array) for name, array in given.items()}
    problem.check_shapes(**given)
    for name, array in given.items():
        if array.dtype.kind not in "fV" or array.dtype.names:
            raise TypeError(f"{name} must hold floats, got dtype {array.dtype}")
    dtype = DTYPES[problem.dtype]
    return {
        name: (array if name in ("lse", "dlse") else array.astype(dtype)).astype(np.float32)
        for name, array in given.items()
    }


def tensors(
    arrays: dict[str, np.ndarray], problem: Problem, sequence: int, heads: Sequence[int]
) -> dict[str, np.ndarray]:
    """What the machine of one kv head finds in HBM, shaped as `hbm.LAYOUT` says."""
    own = _parts(arrays, problem, sequence, heads)
    names = {"Q": "q", "K": "k", "V": "v", "dO": "do", "dLSE": "dlse"}
    return {tensor: own(name) for tensor, name in names.items() if name in arrays}


def forward_outputs(
    arrays: dict[str, np.ndarray], problem: Problem, sequence: int, heads: Sequence[int]
) -> dict[str, np.ndarray]:
    """One machine's part of the O and LSE that came in, copied."""
    own = _parts(arrays, problem, sequence, heads)
    return {tensor: own(name) for tensor, name in (("O", "o"), ("LSE", "lse")) if name in arrays}


def _parts(arrays: dict[str, np.ndarray], problem: Problem, sequence: int, heads: Sequence[int]):
    """A function of a name in `arrays` that gives one machine's part."""

    def part(name: str) -> np.ndarray:
        whole = problem.of_sequence(name, arrays[name], sequence)
        if name in ("k", "v"):
            return whole[:, heads[0] // problem.group]
        return whole[list(heads)] if whole.ndim == 2 else whole[:, list(heads)].swapaxes(0, 1)

    return part


def outputs(problem: Problem, direction: str, idealised: bool) -> dict[str, np.ndarray]:
    """Arrays to collect outputs in, NaN where no run has put anything.

    Rows of a packed batch that belong to no sequence are 0, of LSE -inf.
    """
    names = list(OUTPUTS) if direction == "backward" else ["O", "LSE"]
    if idealised:
        names.remove("LSE")
    found = {name: np.full(problem.shapes[OUTPUTS[name]], np.nan, np.float32) for name in names}
    for name, array in found.items() if problem.sequences is not None else ():
        side = problem.side_of(OUTPUTS[name])
        array[(slice(None), side.outside) if name == "LSE" else side.outside] = (
            -np.inf if name == "LSE" else 0
        )
    return found


def collect(
    collected: dict[str, np.ndarray],
    hbm: Hbm,
    problem: Problem,
    sequence: int,
    heads: Sequence[int],
) -> None:
    """Copy one machine's outputs; keys beyond the sequence's own length get a gradient of 0."""
    for name, out in collected.items():
        found: Any = hbm.tensor(name).data
        own = problem.of_sequence(OUTPUTS[name], out, sequence)
        if name == "LSE":
            own[list(heads)] = found
        elif LAYOUT[name][0] == "head":
            own[:, list(heads)] = found.swapaxes(0, 1)
        else:
            kv = heads[0] // problem.group
            own[:, kv] = found
            if problem.sequences is None:
                out[sequence, len(found) :, kv] = 0
