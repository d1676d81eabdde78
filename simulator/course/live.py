"""Times for a notebook: measured now where there is a GPU, else those that are committed."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from flash_numba import ladder

from ..bench import gpu as gpus
from ..bench.cells import Cell, Options
from ..bench.contenders import Inputs, OneModule, ours
from ..bench.measure import measure, times
from ..bench.truth import Truth
from ..claims.evidence import measured_on, results

NOW = "measured now on {}"
THEN = "measured on {}, driver {} ({})"
NO_GPU = "no GPU here"

SHOWN = {
    "rungs": "rung",
    "directions": "direction",
    "dtypes": "dtype",
    "head_dims": "head_dim",
    "seqlens": "seqlen",
    "masks": "causal",
}
"""Options of a benchmark, and the key of a row that each chooses by."""


def measured(name: str, peers: tuple[str, ...] = (), **chosen: Any) -> tuple[list[dict], str]:
    """Rows of a benchmark, and where they come from.

    Parameters
    ----------
    name : str
        The committed results to show without a GPU, such as ``"h200_fp16"``.
    peers : tuple of str
        Whom to time beside it: keys of `simulator.bench.cells.PEERS`.
    chosen : tuple
        Fields of `simulator.bench.cells.Options`: rungs, directions, dtypes, masks, head_dims,
        seqlens.

    Returns
    -------
    rows : list of dict
        As ``flash-numba bench --output`` writes them.
    where : str
        GPU and date, and whether it is this one.

    Raises
    ------
    RuntimeError
        If a kernel fails or its result is wrong.
    """
    gpu = _find()
    if isinstance(gpu, str):
        return _committed(name, chosen, gpu)
    *_, (_, found) = measure(gpu, Options(budget_s=0.2, peers=peers, **chosen))
    if found["wrong"]:
        raise RuntimeError(f"kernels failed or gave wrong results: {found['wrong']}")
    return found["rows"], NOW.format(gpu.gpu.name)


def measured_steps(steps: dict[str, ModuleType], cell: Cell) -> tuple[list[dict], str]:
    """Rows of the steps to flash2, each with `step`, `ms` and `tflops`; see `measured`.

    Parameters
    ----------
    steps : dict of str to module
        Those of `flash_numba.kernels.steps`, by name.
    cell : Cell
    """
    gpu = _find()
    if isinstance(gpu, str):
        return _committed("h200_steps", {"head_dims": (cell.head_dim,)}, gpu)
    truth, contenders = Truth(cell, Inputs.draw(cell, gpu.device)), []
    for step, module in steps.items():
        contenders.append(ours(OneModule(step, module), truth, gpu.stream))
    rows = []
    for step, samples in times(gpu, contenders, budget_s=0.5).items():
        ms = sorted(samples)[len(samples) // 2]
        rows.append({"step": step, "ms": ms, "tflops": cell.flops / ms / 1e9})
    return rows, NOW.format(gpu.gpu.name)


def _find() -> gpus.TorchGpu | str:
    """The GPU of this machine, or why it is not timed: there is none, or torch cannot use it."""
    try:
        return gpus.find()
    except ValueError as error:
        if isinstance(gpu := ladder.find_gpu(), ladder.NoGpu):
            return NO_GPU
        return f"the {gpu.name} here is not timed: {str(error).partition('; ')[2]}"


def _committed(name: str, chosen: dict[str, Any], why: str) -> tuple[list[dict], str]:
    found = results(name)
    if found is None:
        raise ValueError(
            f"name must be one of benchmarks/results, which come with the repository, got {name!r}"
        )
    wanted = {SHOWN[option]: values for option, values in chosen.items()}
    if "causal" in wanted:
        wanted["causal"] = tuple(mask == "causal" for mask in wanted["causal"])
    rows = [row for row in found["rows"] if all(row[key] in wanted[key] for key in wanted)]
    return rows, THEN.format(measured_on(found), found["machine"]["driver"], why)
