"""Arrays in and out of a run: checked and rounded, then split into what one machine holds."""

from __future__ import annotations

from collections.abc import Sequence

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
    kv = heads[0] // problem.group
    keys = slice(0, problem.key_length(sequence))
    found = {
        "Q": arrays["q"][sequence, :, list(heads)],
        "K": arrays["k"][sequence, keys, kv],
        "V": arrays["v"][sequence, keys, kv],
    }
    if "do" in arrays:
        found["dO"] = arrays["do"][sequence, :, list(heads)]
    if "dlse" in arrays:
        found["dLSE"] = arrays["dlse"][sequence, list(heads)]
    return found


def forward_outputs(
    arrays: dict[str, np.ndarray], sequence: int, heads: Sequence[int]
) -> dict[str, np.ndarray]:
    """One machine's part of the O and LSE that came in, copied."""
    found = {}
    if "o" in arrays:
        found["O"] = arrays["o"][sequence, :, list(heads)]
    if "lse" in arrays:
        found["LSE"] = arrays["lse"][sequence, list(heads)]
    return found


def outputs(problem: Problem, direction: str, idealised: bool) -> dict[str, np.ndarray]:
    """Arrays to collect outputs in, NaN where no run has put anything."""
    names = list(OUTPUTS) if direction == "backward" else ["O", "LSE"]
    if idealised:
        names.remove("LSE")
    return {name: np.full(problem.shapes[OUTPUTS[name]], np.nan, np.float32) for name in names}


def collect(
    collected: dict[str, np.ndarray],
    hbm: Hbm,
    problem: Problem,
    sequence: int,
    heads: Sequence[int],
) -> None:
    """Copy one machine's outputs; keys beyond the sequence's own length get a gradient of 0."""
    for name, out in collected.items():
        found = hbm.tensor(name).data
        if name == "LSE":
            out[sequence, list(heads)] = found
        elif LAYOUT[name][0] == "head":
            out[sequence, :, list(heads)] = found
        else:
            length, kv = problem.key_length(sequence), heads[0] // problem.group
            out[sequence, :length, kv] = found
            out[sequence, length:, kv] = 0
