"""Run a program on a problem: numbers, counts, and if wanted the event log."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from flash_numba.problem import DTYPES, Problem
from flash_numba.scores import check_differentiable
from flash_numba.tiling import Schedule

from .counts import Counts
from .events import EventLog
from .machine import LAYOUT, Machine
from .programs import PROGRAMS, Program

H100_SRAM_BYTES = 227 * 1024
"""Shared memory that one thread block can have on an H100 (CUDA C++ Programming Guide, table of
technical specifications, compute capability 9.0)."""


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
        Outputs by name - O, dQ, dK, dV of shape (batch, seqlen, heads, head_dim), LSE of shape
        (batch, heads, seqlen) - if arrays went in.
    aux : list of arrays or None
        Gradients of the score changes' tensors (backward).
    log : EventLog or None
    """

    counts: Counts
    register_peak_bytes: int = 0
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    aux: list | None = None
    log: EventLog | None = None


def simulate(
    program: str | Program,
    problem: Problem,
    q=None,
    k=None,
    v=None,
    do=None,
    dlse=None,
    *,
    direction: str = "forward",
    tile_m: int = 64,
    tile_n: int = 64,
    sram_bytes: int | None = H100_SRAM_BYTES,
    batch: int = 0,
    head: int | None = 0,
    record: bool = False,
) -> Run:
    """Walk `program` over one query head, or over all.

    Parameters
    ----------
    program : str or Program
        A key of `programs.PROGRAMS`.
    problem : Problem
    q, k, v : float arrays of shape (batch, seqlen, heads, head_dim), optional
        Without them only accesses are counted. They are rounded to the problem's dtype; the
        simulator computes in float32.
    do : float array of shape (batch, seqlen_q, num_heads, head_dim_v), optional
        Gradient of the output; needed with arrays for ``direction="backward"``.
    dlse : float array of shape (batch, num_heads, seqlen_q), optional
        Gradient of lse. For a backward that only counts, True stands for "there is one".
    direction : "forward" or "backward"
        A backward with arrays runs the forward first, uncounted.
    tile_m, tile_n : int
        Rows of a query tile and of a key tile.
    sram_bytes : int or None
        Capacity of SRAM; None = unlimited.
    batch, head : int
        Which sequence and query head; ``head=None`` runs all heads of all sequences, with K and V
        shared as the schedule shares them.
    record : bool
        Keep the event log (of one head only).

    Raises
    ------
    ValueError, TypeError
        Naming the argument, what is allowed and what was received.
    """
    program = _program(program)
    _check(problem, direction, batch, head, record)
    arrays = _tensors(problem, q, k, v, do, dlse, direction)
    lse_gradient = dlse is not None and dlse is not False
    groups = _groups(problem, batch, head)
    result = Run(Counts({}, {}), arrays=_outputs(problem, direction) if arrays else {})
    for sequence, heads in groups:
        data = _inputs(arrays, sequence, heads, problem) if arrays else None
        options = dict(batch=sequence, heads=heads, data=data, sram_bytes=sram_bytes)
        if data is not None and direction == "backward":
            program.forward.run(Machine(problem, tile_m, tile_n, **options))
        chosen = program.forward if direction == "forward" else program.backward
        if record:
            result.log = EventLog(_meta(program, problem, direction, tile_m, tile_n, options))
        gpu = Machine(
            problem,
            tile_m,
            tile_n,
            lse_gradient=lse_gradient,
            lines=chosen.lines,
            log=result.log,
            **options,
        )
        chosen.run(gpu)
        result.counts += gpu.ledger.counts(gpu.sram.peak)
        result.register_peak_bytes = max(result.register_peak_bytes, gpu.register_peak)
        if data is not None:
            _collect(result, data, sequence, heads, problem)
            result.aux = _added(result.aux, gpu.aux_totals)
    return result


def _program(program: str | Program) -> Program:
    if isinstance(program, Program):
        return program
    if program not in PROGRAMS:
        raise ValueError(f"program must be one of {', '.join(PROGRAMS)}; got {program!r}")
    return PROGRAMS[program]


def _check(problem: Problem, direction: str, batch: int, head: int | None, record: bool) -> None:
    if direction not in ("forward", "backward"):
        raise ValueError(f"direction must be 'forward' or 'backward', got {direction!r}")
    if direction == "backward":
        check_differentiable(problem)
    if head is None:
        if record:
            raise ValueError("record=True follows one head: head must be a number, got None")
        return
    for name, value, limit in (("batch", batch, problem.batch), ("head", head, problem.num_heads)):
        if not 0 <= value < limit:
            raise ValueError(f"{name} must be in 0..{limit - 1}, got {value}")


def _groups(problem: Problem, batch: int, head: int | None) -> list[tuple[int, tuple[int, ...]]]:
    """(sequence, query heads that share a kv head) of every machine to run."""
    if head is not None:
        return [(batch, (head,))]
    size = problem.group
    kv_heads = range(problem.num_kv_heads)
    shared = [tuple(range(kv * size, (kv + 1) * size)) for kv in kv_heads]
    return [(sequence, heads) for sequence in range(problem.batch) for heads in shared]


def _tensors(problem: Problem, q, k, v, do, dlse, direction: str) -> dict[str, np.ndarray] | None:
    """The arrays that came in, checked, rounded to the problem's dtype, as float32."""
    given = {"q": q, "k": k, "v": v}
    missing = [name for name, array in given.items() if array is None]
    if len(missing) == 3:
        return None
    if missing:
        raise ValueError(f"q, k and v must come together, got none for {' and '.join(missing)}")
    b, h, kv = problem.batch, problem.num_heads, problem.num_kv_heads
    n, m, d, d_v = problem.seqlen_q, problem.seqlen_k, problem.head_dim, problem.head_dim_v
    shapes = {"q": (b, n, h, d), "k": (b, m, kv, d), "v": (b, m, kv, d_v)}
    if direction == "backward":
        if do is None:
            raise ValueError("do must be an array for a backward with q, k and v, got None")
        given["do"], shapes["do"] = do, (b, n, h, d_v)
        if dlse is not None:
            given["dlse"], shapes["dlse"] = dlse, (b, h, n)
    dtype = DTYPES[problem.dtype]
    arrays = {}
    for name, array in given.items():
        array = np.asarray(array)
        if array.shape != shapes[name]:
            raise ValueError(f"{name} must have shape {shapes[name]}, got {array.shape}")
        if array.dtype.kind not in "fV" or array.dtype.names:
            raise TypeError(f"{name} must hold floats, got dtype {array.dtype}")
        rounded = array if name == "dlse" else array.astype(dtype)
        arrays[name] = rounded.astype(np.float32)
    return arrays


def _inputs(arrays, sequence: int, heads: tuple[int, ...], problem: Problem) -> dict:
    """One machine's tensors in HBM, shaped as `machine.LAYOUT` says."""
    kv = heads[0] // problem.group
    keys = slice(0, problem.key_length(sequence))
    data = {
        "Q": arrays["q"][sequence, :, heads, :],
        "K": arrays["k"][sequence, keys, kv],
        "V": arrays["v"][sequence, keys, kv],
    }
    if "do" in arrays:
        data["dO"] = arrays["do"][sequence, :, heads, :]
    if "dlse" in arrays:
        data["dLSE"] = arrays["dlse"][sequence, heads, :]
    return data


def _outputs(problem: Problem, direction: str) -> dict[str, np.ndarray]:
    """Zeros to collect outputs in; keys beyond a sequence's own length keep a zero gradient."""
    b, h, kv = problem.batch, problem.num_heads, problem.num_kv_heads
    n, m, d, d_v = problem.seqlen_q, problem.seqlen_k, problem.head_dim, problem.head_dim_v
    shapes = {"O": (b, n, h, d_v), "LSE": (b, h, n)}
    if direction == "backward":
        shapes |= {"dQ": (b, n, h, d), "dK": (b, m, kv, d), "dV": (b, m, kv, d_v)}
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


def _collect(result: Run, data, sequence: int, heads: tuple[int, ...], problem: Problem) -> None:
    for name, out in result.arrays.items():
        if name == "LSE":
            out[sequence, heads, :] = data[name]
        elif LAYOUT[name][0] == "head":
            out[sequence, :, heads, :] = data[name]
        else:
            kv = heads[0] // problem.group
            out[sequence, : problem.key_length(sequence), kv] += data[name]


def _added(total, part):
    if total is None:
        return part
    return [a if a is None else a + b for a, b in zip(total, part, strict=True)]


def _meta(program, problem, direction, tile_m, tile_n, options) -> dict:
    chosen = program.forward if direction == "forward" else program.backward
    batch, head = options["batch"], options["heads"][0]
    schedule = Schedule(problem, tile_m, tile_n, batch, head)
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
        "num_heads": problem.num_heads,
        "batch": batch,
        "head": head,
        "tile_m": tile_m,
        "tile_n": tile_n,
        "sram_bytes": options["sram_bytes"],
        "kernels": list(chosen.lines),
        "lines": [line for group in chosen.lines.values() for line in group],
        "line_kernels": [i for i, g in enumerate(chosen.lines.values()) for _ in g],
        "tile_kinds": schedule.kinds().tolist(),
    }
