"""Run a program on a problem: numbers, counts, and if wanted the event log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flash_numba.checks import LARGEST, index, one_of, whole
from flash_numba.problem import Problem, check_problem
from flash_numba.scores import aux_totals, check_differentiable
from flash_numba.tiling import Schedule

from .arrays import OUTPUTS, checked, collect, forward_outputs, outputs, tensors
from .counts import Counts
from .events import EventLog
from .hardware import H100
from .hbm import ITEMSIZE
from .machine import Machine
from .memory import SramOverflow
from .programs import BROKEN, PROGRAMS, Pass, Program


@dataclass
class Run:
    """What a run gave.

    Attributes
    ----------
    counts : Counts
        Of the asked direction alone.
    register_peak_bytes : int
        The most that tiles in registers took at once (fp32), not part of the SRAM peak.
    arrays : dict of str to float32 array
        Outputs by name, if arrays went in - O, dQ, dK, dV of shape (batch, seqlen, heads,
        head_dim), LSE of shape (batch, heads, seqlen). NaN for the heads that did not run.
    aux : list of arrays or None
        Gradients of the score changes' tensors (backward).
    log : EventLog or None
    """

    counts: Counts
    register_peak_bytes: int = 0
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    aux: list | None = None
    log: EventLog | None = None


# Overflow and NaN spread without a word, as on a GPU.
@np.errstate(over="ignore", invalid="ignore")
def simulate(
    program: str | Program,
    problem: Problem,
    q=None,
    k=None,
    v=None,
    do=None,
    dlse=None,
    *,
    o=None,
    lse=None,
    direction: str = "forward",
    tile_m: int = 64,
    tile_n: int = 64,
    sram_bytes: int | None = H100.shared_bytes_per_block,
    batch: int = 0,
    head: int | None = 0,
    record: bool = False,
) -> Run:
    """Walk `program` over one query head, or over all.

    Parameters
    ----------
    program : str or Program
        A key of `programs.PROGRAMS` or `programs.BROKEN`, or a program of your own.
    problem : Problem
    q, k, v : float arrays of shape (batch, seqlen, heads, head_dim), optional
        Without them only accesses are counted. They are rounded to the problem's dtype; the
        simulator computes in float32.
    do : float array of shape (batch, seqlen_q, num_heads, head_dim_v), optional
        Gradient of the output; needed with arrays for ``direction="backward"``.
    dlse : float array of shape (batch, num_heads, seqlen_q), optional
        Gradient of lse. For a backward that only counts, True stands for "there is one".
    o, lse : float arrays of the shapes of `do` and `dlse`, optional
        The forward's outputs for a backward to start from, in place of those it finds itself.
    direction : "forward" or "backward"
        A backward with arrays runs the forward first, uncounted.
    tile_m, tile_n : int
        Rows of a query tile and of a key tile; an idealised program has no use for them.
    sram_bytes : int or None
        Capacity of SRAM, by default what a thread block can have on an H100; None = unlimited, as
        it is for an idealised program in any case.
    batch, head : int
        Which sequence and query head; ``head=None`` runs all heads of all sequences, with K and V
        shared as the schedule shares them. Heads that only count and visit the same tiles are
        walked once and counted as often as there are.
    record : bool
        Keep the event log (of one head only).

    Raises
    ------
    ValueError, TypeError
        Naming the argument, what is allowed and what was received. `SramOverflow` is one.
    """
    program = _program(program)
    _check(problem, direction, batch, head, record)
    for name, size in (("tile_m", tile_m), ("tile_n", tile_n)):
        whole(name, size, 1, LARGEST)
    if sram_bytes is not None:
        whole("sram_bytes", sram_bytes, 1)
    lse_gradient = dlse is not None and dlse is not False
    if lse_gradient and program.idealised:
        raise ValueError(f"dlse must be None for {program.name}, which has no lse; got one")
    arrays = checked(problem, direction, q, k, v, do, dlse, o, lse)
    chosen = program.forward if direction == "forward" else program.backward
    options: dict[str, Any] = {
        "tile_m": tile_m,
        "tile_n": tile_n,
        "sram_bytes": None if program.idealised else sram_bytes,
    }
    result = Run(Counts(sram_peak_bytes=None if program.idealised else 0))
    if arrays is not None:
        result.arrays = outputs(problem, direction, program.idealised)
        result.aux = aux_totals(problem) if direction == "backward" else None
    if record:
        result.log = EventLog(_meta(program, problem, direction, batch, head or 0, options))
    for sequence, heads, times in _groups(problem, batch, head, counts_only=arrays is None):
        options |= {"batch": sequence, "heads": heads}
        part = problem.sequence(sequence)
        if arrays is not None:
            options["data"] = tensors(arrays, problem, sequence, heads)
            if direction == "backward":
                _run(program.forward, part, options)
                options["data"] |= forward_outputs(arrays, problem, sequence, heads)
        gpu = _run(chosen, part, options, lse_gradient=lse_gradient, log=result.log)
        peak = None if program.idealised else gpu.sram.peak
        result.counts += gpu.ledger.counts(peak) * times
        result.register_peak_bytes = max(result.register_peak_bytes, gpu.register_peak)
        if arrays is not None:
            collect(result.arrays, gpu.hbm, problem, sequence, heads)
            for total, own in zip(result.aux or (), gpu.aux_totals or (), strict=False):
                if total is not None:
                    total += own
    if head is None and problem.sequences is not None:
        result.counts += _rows_outside(problem, direction, program.idealised)
    return result


def _run(chosen: Pass, problem: Problem, options: dict, **more) -> Machine:
    gpu = Machine(problem, lines=chosen.lines, **options, **more)
    try:
        chosen.run(gpu)
    except SramOverflow as error:
        raise SramOverflow(
            f"tile_m and tile_n must let all tiles fit into sram_bytes={options['sram_bytes']:,}, "
            f"got tile_m={options['tile_m']} and tile_n={options['tile_n']}: {error}"
        ) from error
    return gpu


def _rows_outside(problem: Problem, direction: str, idealised: bool) -> Counts:
    """The zeros that a pass writes into rows which count in no sequence of a packed batch."""
    names = ("O", "LSE")[: 1 if idealised else 2] if direction == "forward" else ("dQ", "dK", "dV")
    writes, size = {}, 0
    for name in names:
        own = OUTPUTS[name]
        rows, shape = int(problem.side_of(own).outside.sum()), problem.shapes[own]
        writes[name] = rows * (shape[0] if name == "LSE" else shape[1] * shape[2])
        size += writes[name] * ITEMSIZE.get(name, problem.itemsize)
    return Counts(writes=writes, hbm_bytes=size, sram_peak_bytes=None if idealised else 0)


def _program(program: str | Program) -> Program:
    if isinstance(program, Program):
        return program
    if isinstance(program, str) and program in BROKEN:
        return BROKEN[program]
    return PROGRAMS[one_of("program", program, PROGRAMS)]


def _check(problem: Problem, direction: str, batch: int, head: int | None, record: bool) -> None:
    check_problem(problem)
    one_of("direction", direction, ("forward", "backward"))
    if direction == "backward":
        check_differentiable(problem)
    if head is not None:
        index("batch", batch, problem.batch)
        index("head", head, problem.num_heads)
    elif record:
        raise ValueError("record=True follows one head: head must be a number, got None")


def _groups(
    problem: Problem, batch: int, head: int | None, counts_only: bool
) -> Iterator[tuple[int, tuple[int, ...], int]]:
    """Every machine to run: sequence, query heads that share a kv head, how often it counts."""
    if head is not None:
        yield batch, (head,), 1
        return
    size, kv_heads = problem.group, problem.num_kv_heads
    mask = problem.mask
    by_length = problem.block_mask is None and (mask is None or mask.key_range is None)
    if counts_only and by_length:
        # Causal and window follow from the lengths, and nothing else skips a tile.
        for sequence, times in problem.alike().values():
            yield sequence, tuple(range(size)), times * kv_heads
        return
    for sequence, kv in np.ndindex(problem.batch, kv_heads):
        yield sequence, tuple(range(kv * size, (kv + 1) * size)), 1


def _meta(
    program: Program, problem: Problem, direction: str, batch: int, head: int, options: dict
) -> dict:
    chosen = program.forward if direction == "forward" else program.backward
    schedule = Schedule(problem, options["tile_m"], options["tile_n"], batch, head)
    lines = chosen.lines.values()
    return {
        "program": program.name,
        "title": program.title,
        "direction": direction,
        "seqlen_q": schedule.seqlen_q,
        "seqlen_k": schedule.seqlen_k,
        "head_dim": problem.head_dim,
        "head_dim_v": problem.head_dim_v,
        "dtype": problem.dtype,
        "itemsize": problem.itemsize,
        "causal": problem.causal,
        "window": list(problem.window),
        "listed_tiles": problem.mask is not None or problem.block_mask is not None,
        "softmax_scale": problem.softmax_scale,
        "score_mods": [mod.name for mod in problem.score_mods],
        "num_heads": problem.num_heads,
        "batch": batch,
        "head": head,
        **options,
        "kernels": list(chosen.lines),
        "lines": [line for group in lines for line in group],
        "line_kernels": [i for i, group in enumerate(lines) for _ in group],
        "tile_kinds": schedule.kinds().tolist(),
    }
