"""``trace(kernel)[grid, block, stream, shared_bytes](*args)``."""

from __future__ import annotations

import inspect
import math
from collections import Counter as Tally
from collections.abc import Iterator
from typing import Any

import numpy as np

from .alike import Alike
from .arrays import Array
from .configuration import (
    MOST_BLOCK,
    MOST_GRID,
    MOST_SHARED_BYTES,
    MOST_STATIC_BYTES,
    MOST_THREADS,
    dimensions,
    python_function,
)
from .counts import Count, Counter
from .errors import fail
from .grouping import group
from .memory import GlobalMemory, SharedMemory
from .races import RaceFinder
from .report import Entry, Report
from .runtime import Runtime
from .sample import Sample
from .scalars import argument, dtype_name
from .schedule import Team
from .teams import cluster_size, teams
from .thread import Dim3
from .tiles import Phase, phase
from .translate.functions import Functions
from .translate.kinds import Kind, of_value


class Tracer:
    """A kernel to trace; index it like the kernel to launch it."""

    def __init__(self, kernel, **options):
        self.kernel, self.options = kernel, options
        self.function = python_function(kernel)

    def __getitem__(self, configuration) -> Configured:
        configuration = configuration if isinstance(configuration, tuple) else (configuration,)
        if not 2 <= len(configuration) <= 4:
            raise ValueError("must specify at least the griddim and blockdim")
        return Configured(self, *configuration)


class Configured:
    """A kernel with its launch configuration; call it with the kernel's arguments."""

    def __init__(self, tracer: Tracer, grid, block, stream=None, shared_bytes=0):
        self.tracer = tracer
        self.grid = dimensions(grid, "grid", MOST_GRID)
        self.block = dimensions(block, "block", MOST_BLOCK)
        threads = math.prod(self.block)
        bounds = (getattr(tracer.kernel, "targetoptions", None) or {}).get("launch_bounds")
        most = bounds[0] if isinstance(bounds, tuple) else bounds or MOST_THREADS
        if threads > most:
            why = "the kernel's launch_bounds allow" if bounds else "a block has at most"
            raise fail(
                "launch",
                f"CUDA_ERROR_INVALID_VALUE: block {self.block} has {threads} threads, {why} {most}",
            )
        if not isinstance(shared_bytes, int | np.integer) or shared_bytes < 0:
            raise TypeError(f"shared_bytes must be an int of at least 0, got {shared_bytes!r}")
        self.shared_bytes = int(shared_bytes)

    def __call__(self, *args) -> Report:
        """Run the kernel."""
        return Launch(self.tracer, self)(*args)


class Launch:
    """One run of a kernel."""

    def __init__(self, tracer: Tracer, configured: Configured):
        options = tracer.options
        self.function, self.configured = tracer.function, configured
        self.blocks, self.order = options["blocks"], options["order"]
        threads = math.prod(configured.block)
        if self.order is not None and sorted(self.order) != list(range(threads)):
            raise ValueError(f"order must hold each of 0 to {threads - 1} once, got {self.order}")
        self.phases: list[Phase] | None = [] if options["tiles"] else None
        self.arrays: dict[str, Array] = {}
        counting = options["count"]
        checking = counting and options["check"]
        self.runtime = Runtime(counting, checking, options["errors"] == "collect", options["turns"])
        self.runtime.cluster = cluster_size(options["cluster"], configured.grid)
        self.runtime.grid, self.runtime.block_shape = configured.grid, configured.block
        if self.blocks == "representative":
            self.runtime.alike = Alike(configured.grid)
        self.globals = GlobalMemory(self.runtime)
        self.shared = SharedMemory(self.runtime, configured.shared_bytes)
        self.functions = Functions(self.runtime, self.shared, self.globals.constant)

    def __call__(self, *args) -> Report:
        """Run the kernel on these arguments."""
        names = self._parameters(args)
        self.globals.plan(_arrays(args))
        values = [self._value(value, name) for name, value in zip(names, args, strict=True)]
        self.arrays = dict(_named(tuple(values), names))
        kernel = self.functions.kernel(self.function, tuple(_kind(value) for value in values))
        dynamic = self.configured.shared_bytes
        if self.shared.static_bytes > MOST_STATIC_BYTES:
            raise fail(
                "launch",
                f"ptxas: the kernel declares {self.shared.static_bytes:,} bytes of static shared "
                f"memory, {MOST_STATIC_BYTES:,} at most: declare it as dynamic shared memory, "
                "cuda.shared.array(0, dtype), and launch with its bytes as the fourth number",
            )
        if self.shared.static_bytes + dynamic > MOST_SHARED_BYTES:
            raise fail(
                "launch",
                f"CUDA_ERROR_INVALID_VALUE: {self.shared.static_bytes} bytes of static and "
                f"{dynamic} of dynamic shared memory exceed the {MOST_SHARED_BYTES} of a block",
            )
        if self.functions.dynamic_types:
            sizes = [
                np.dtype(np.uint16 if n == "bfloat16" else n).itemsize
                for n in self.functions.dynamic_types
            ]
            for dtype in self.functions.dynamic_types:
                self.shared.dynamic("dynamic shared memory", dtype, min(sizes))
        together = self._together()
        self.races = None
        if self.runtime.checking:
            threads = max(map(len, together), default=1) * math.prod(self.configured.block)
            self.races = RaceFinder(self.runtime, self.memories, threads)
            if self.functions.async_proxy:
                self.races.follow_proxies()
        counter = Counter(self.runtime.log, self.memories)
        if self.runtime.alike is not None:
            ran, sampled = Sample(self, kernel, values).run(counter, self.runtime.alike)
            return self._report(counter, ran, sampled)
        for number, blocks in enumerate(together):
            counter.barriers += self.run_blocks(kernel, values, counter, number, blocks)
        return self._report(counter, sum(map(len, together)))

    def _together(self) -> list[list[Dim3]]:
        """The blocks that run at once; makes the shared memory of each."""
        meets, cluster = self.functions.meets, self.runtime.cluster
        grid, threads = self.configured.grid, math.prod(self.configured.block)
        if (meets or cluster > 1) and (self.blocks == "representative" or self.phases is not None):
            raise ValueError(
                "blocks='representative' and tiles=True need blocks that run on their own, "
                "without clusters and barriers of the grid"
            )
        chosen = None if self.blocks == "representative" else self.blocks
        found = teams(grid, threads, chosen, cluster, meets)
        self.shared.spread(max(map(len, found), default=1))
        self.memories = self.globals.memories + self.shared.memories
        return found

    def _report(self, counter, blocks, sampled=()) -> Report:
        sites = self.runtime.log.sites
        entries = [
            Entry(
                sites[code],
                counter.memories[number],
                Count(*map(int, total)),
                counter.worst[code, number][1],
                frozenset(counter.warps[code, number]),
            )
            for (code, number), total in sorted(counter.totals.items())
        ]
        return Report(
            self.function.__name__,
            tuple(self.configured.grid),
            tuple(self.configured.block),
            blocks,
            entries,
            counter.barriers,
            self.functions.flops.totals(),
            self.runtime.findings,
            self.functions.locals,
            list(dict.fromkeys(self.functions.run_time_indices)),
            self.shared.static_bytes + self.shared.dynamic_bytes,
            tuple(sampled),
            self.functions.fingerprint(),
            self.phases,
            self.arrays,
            self.shared.static_bytes,
        )

    def _parameters(self, args) -> list[str]:
        names = list(inspect.signature(self.function).parameters)
        if len(names) != len(args):
            raise TypeError(
                f"kernel {self.function.__name__} takes {len(names)} arguments "
                f"({', '.join(names)}), got {len(args)}"
            )
        return names

    def _value(self, value, name: str) -> Any:
        if isinstance(value, np.ndarray):
            return self.globals.array(value, name)
        if isinstance(value, tuple):
            return tuple(self._value(one, f"{name}[{i}]") for i, one in enumerate(value))
        if value is None or isinstance(value, bool | int | float | np.generic):
            return argument(value)
        raise TypeError(
            f"{name} must be a NumPy array, a scalar or a tuple of them, got {type(value).__name__}"
        )

    def run_blocks(self, kernel, values, counter, number, blocks) -> Tally:
        """Run blocks at once into `counter`; the barriers that their threads met in."""
        runtime = self.runtime
        self.shared.reset()
        threads = math.prod(self.configured.block)
        lanes = np.tile(np.minimum(32, threads - np.arange(0, threads, 32)), len(blocks))
        places = [0] * threads * len(blocks)
        if self.races:
            self.races.fenced = self.functions.fenced
            self.races.blocks.fenced = self.functions.ordered
            self.races.begin()

        def at_barrier(members, segments):
            if not runtime.counting:
                return
            words = np.array(runtime.log.words)
            if len(words):
                if self.phases is not None:
                    sites = runtime.log.sites
                    self.phases.append(phase(number, words, segments, sites, self.arrays))
                counter.add(group(words, members, segments, places), lanes)
                if runtime.calls:
                    counter.add_calls(words, runtime.calls)
                counter.add_moved(runtime.moved)
                if self.races:
                    self.races.check(words, segments, number, ended=not team.alive)
            places[:] = [thread.place for thread in members]

        team = Team(runtime, blocks, at_barrier, self.functions.lines, self.order)
        team.run(kernel, values)
        return runtime.barriers


def _arrays(value) -> list[np.ndarray]:
    """The NumPy arrays within nested tuples."""
    if isinstance(value, tuple):
        return [array for one in value for array in _arrays(one)]
    return [value] if isinstance(value, np.ndarray) else []


def _named(values: tuple, names: list[str]) -> Iterator[tuple[str, Array]]:
    """The traced arrays within nested tuples, as they are called."""
    for value, name in zip(values, names, strict=True):
        if isinstance(value, tuple):
            yield from _named(value, [f"{name}[{i}]" for i in range(len(value))])
        elif isinstance(value, Array):
            yield name, value


def _kind(value) -> Kind:
    if isinstance(value, Array):
        return Kind("array", True, value.ndim, dtype_name(value.dtype))
    if isinstance(value, tuple):
        return Kind("tuple", True, parts=tuple(_kind(one) for one in value))
    return of_value(value)


def trace(
    kernel,
    *,
    count: bool = True,
    check: bool = True,
    errors: str = "raise",
    blocks=None,
    order=None,
    turns: int = 4_000_000,
    tiles: bool = False,
    cluster: int = 1,
) -> Tracer:
    """Run a CUDA kernel thread by thread on the CPU: ``trace(kernel)[grid, block](*args)``.

    Parameters
    ----------
    kernel : @cuda.jit dispatcher or Python function
    count : bool
        Count accesses. Without, only the numbers are computed (about twice as fast).
    check : bool
        Look for races and reads of unwritten memory, too.
    errors : "raise" or "collect"
        Stop at the first error, or go on where possible and give all in `Report.findings`.
    blocks : sequence of ints or tuples of ints, or "representative", optional
        Run these blocks only, in this order; or run one block (and, to make sure, another) of each
        class of blocks that provably do the same, and count it for all (`alike`). Only the blocks
        that ran write their results, and races between blocks are seen among them only.
    order : sequence of int, optional
        The order in which the threads of a block run between barriers; a sound kernel gives the
        same result in any.
    turns : int
        Turns after which a loop is said to run away: of ``while`` loops by all threads that run at
        once together (a block that spins ends within seconds), of any unbounded loop by one.
    tiles : bool
        Keep what `Report.tile_steps` needs; all blocks must run.
    cluster : int
        Neighbouring blocks along x that form a cluster, as the launch on a GPU would say.

    Returns
    -------
    Tracer
        Indexed with ``grid, block[, stream[, shared_bytes]]`` and called with NumPy arrays, which
        it changes as a GPU would, it gives a `Report`.

    Raises
    ------
    KernelError
        Where the kernel breaks a rule of CUDA, with the source line.
    """
    if isinstance(blocks, str) and blocks != "representative":
        raise ValueError(f"blocks must be indices or 'representative', got {blocks!r}")
    if blocks == "representative" and (tiles or not count):
        raise ValueError("blocks='representative' needs count=True and tiles=False")
    if errors not in ("raise", "collect"):
        raise ValueError(f"errors must be 'raise' or 'collect', got {errors!r}")
    if not isinstance(turns, int | np.integer) or turns < 1:
        raise ValueError(f"turns must be an int of at least 1, got {turns}")
    return Tracer(
        kernel,
        count=count,
        check=check,
        errors=errors,
        blocks=blocks,
        order=order,
        turns=turns,
        tiles=tiles,
        cluster=cluster,
    )


def tensor_map(array, rows: int, columns: int):
    """What a traced kernel is handed as a tensor map of Hopper's copy engine.

    Parameters
    ----------
    array : array of (batch, seqlen, heads, columns)
        16-bit elements.
    rows, columns : int
        The box that one copy moves; see `flash_numba.device.hopper.tensor_map.TensorMap`.
    """
    from flash_numba.device.hopper.tensor_map import TensorMap

    return TensorMap(array, rows, columns)
