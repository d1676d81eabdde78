"""Compiling kernels ahead of their use, in many processes and without a GPU.

Kernels are kept where `kernel_store` says; only this version of the package, with the same Python
and the same compilers, finds them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, NamedTuple

from . import ladder
from .addresses import unknown
from .arrays import contiguous
from .checks import one_of
from .ladder import Gpu, NoGpu, Rung
from .passes import plan_backward, plan_forward
from .plan import Noted
from .problem import Problem

CUMULATIVE = ("cu_seqlens_q", "cu_seqlens_k")


class Task(NamedTuple):
    """The kernels of one pass of a rung.

    Attributes
    ----------
    rung : Rung
    problem : Problem
        If it is of a packed batch, only the GPU knows its lengths.
    direction : str
        "forward", or "backward": of both passes.
    """

    rung: Rung
    problem: Problem
    direction: str

    def __str__(self) -> str:
        (rung, problem, direction), mask = self, "causal" if self.problem.causal else "full"
        sizes = f"D={problem.head_dim} N={problem.seqlen_q}"
        return f"{rung.label} {direction} {problem.dtype} {sizes} {mask}"


class Wanted(NamedTuple):
    """A kernel to compile: number `number` of those that a task launches."""

    task: Task
    number: int
    key: str
    cc: tuple[int, int]


def gpu_to_compile_for(capability: str | None) -> Gpu:
    """A GPU of a compute capability, such as "9.0"; None = this machine's.

    Raises
    ------
    ValueError
        If it is no compute capability that the kernels support, or there is no GPU.
    """
    if capability is None:
        gpu = ladder.find_gpu()
        if isinstance(gpu, NoGpu):
            raise ValueError(f"--compile-for must say for which GPU, such as 9.0; {gpu.reason}")
        return gpu
    from .launch import SHARED_LIMITS

    known = {f"{major}.{minor}": (major, minor) for major, minor in sorted(SHARED_LIMITS)}
    return Gpu(f"GPU {capability}", known[one_of("compile-for", capability, known)])


def compile_all(wanted: Iterable[Task], cc: tuple[int, int], jobs: int) -> Iterator[str]:
    """Compile the kernels of tasks, each once, in `jobs` processes.

    Parameters
    ----------
    wanted : iterable of Task
    cc : tuple of int
        Compute capability to compile for, (major, minor).
    jobs : int

    Yields
    ------
    str
        A line for each kernel: its name, the first task that needs it, and how long it took, or
        what went wrong.
    """
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        yield from pool.map(_compile, distinct(wanted, cc))


def distinct(wanted: Iterable[Task], cc: tuple[int, int]) -> list[Wanted]:
    """The kernels of tasks, each once, those of backward passes, which take longest, first."""
    from .kernels.offline import pretend
    from .launch import kernel_key

    found: dict[str, Wanted] = {}
    with pretend(cc):
        for task in wanted:
            for number, (dispatcher, signature) in enumerate(noted(task)):
                key = kernel_key(dispatcher, signature, cc)
                if key is not None:
                    found.setdefault(key, Wanted(task, number, key, cc))
    return sorted(found.values(), key=lambda one: one.task.direction)


def noted(task: Task) -> list[tuple[Any, tuple]]:
    """Dispatcher and signature of all kernels that a task launches."""
    rung, problem, direction = task
    views = {name: _view(problem, name) for name in ("q", "k", "v")}
    if problem.sequences is not None:
        shape = (problem.batch + 1,)
        views |= {name: contiguous(unknown(name), shape, "int32") for name in CUMULATIVE}
    plan = Noted()
    plan_forward(rung, problem, views, plan)
    if direction == "backward":
        views |= {name: _view(problem, name) for name in ("o", "lse", "do")}
        plan_backward(rung, problem, views, ("q", "k", "v"), {}, {}, plan)
    return plan.kernels


def _view(problem: Problem, name: str):
    dtype = "fp32" if name == "lse" else problem.dtype
    return contiguous(unknown(name), problem.shapes[name], dtype)


def _compile(wanted: Wanted) -> str:
    from .kernels.offline import pretend
    from .launch import keep_kernel

    start = time.perf_counter()
    with pretend(wanted.cc):
        dispatcher, signature = noted(wanted.task)[wanted.number]
        name = f"{dispatcher.py_func.__name__}, {wanted.task}"
        try:
            new = keep_kernel(wanted.key, dispatcher, signature)
        except Exception as error:
            return f"{name}: failed, {type(error).__name__}: {error}"
    return f"{name}: {time.perf_counter() - start:.1f} s" if new else f"{name}: there already"
