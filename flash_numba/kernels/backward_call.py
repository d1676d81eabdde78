"""What the host entries of the backward kernels share: memory in parts, and the short passes."""

from collections.abc import Sequence

from ..arrays import DeviceArray
from ..launch import launch
from ..problem import Problem
from ..tiling import ceil_div
from . import row_passes


def parts_of(memory, sizes: Sequence[int]) -> list[int]:
    """Addresses of the parts of `memory`, of `sizes` bytes, one after the other."""
    at, found = DeviceArray.of(memory).pointer, []
    for size in sizes:
        found.append(at)
        at += size
    return found


def asked_for(d_aux: Sequence) -> tuple[int, ...]:
    """Numbers of the score changes whose gradient is not None."""
    return tuple(number for number, gradient in enumerate(d_aux) if gradient is not None)


def or_row(gradient, like: DeviceArray, itemsize: int, row: int) -> DeviceArray:
    """A gradient, or where nobody asked for it the one row at address `row`, over and over."""
    if gradient is not None:
        return DeviceArray.of(gradient)
    return DeviceArray(row, like.shape, (0, 0, 0, itemsize), like.dtype)


def _row_blocks(problem: Problem) -> int:
    return problem.batch * problem.num_heads * ceil_div(problem.seqlen_q, row_passes.ROWS)


def launch_delta(
    problem: Problem, out, dout, dlse: tuple, delta, dq, columns: int, vectors: bool, stream: int
) -> None:
    """delta, and zeros in the first `columns` columns of `dq`; `dlse` is ``(array,)`` or ()."""
    sizes = problem.dtype, columns, problem.head_dim_v, vectors, bool(dlse)
    arguments = out, dout, dlse, delta, dq
    kernel = row_passes.make_delta(*sizes)
    launch(kernel, _row_blocks(problem), row_passes.THREADS, 0, arguments, stream)


def launch_row_dots(
    problem: Problem, out, dout, dlse: tuple, delta, vectors: bool, stream: int
) -> None:
    """delta alone; `dlse` as above."""
    kernel = row_passes.make_row_dots(problem.dtype, problem.head_dim_v, vectors, bool(dlse))
    arguments = out, dout, dlse, delta
    batch, seqlen_q, num_heads, _ = out.shape
    blocks = batch * num_heads * ceil_div(seqlen_q, row_passes.ROWS)
    launch(kernel, blocks, row_passes.THREADS, 0, arguments, stream)


def launch_round(problem: Problem, sums: DeviceArray, dq: DeviceArray, stream: int) -> None:
    """float32 sums of dQ rounded to its own type."""
    kernel = row_passes.make_round(problem.dtype)
    launch(kernel, _row_blocks(problem), row_passes.THREADS, 0, (sums, dq), stream)
