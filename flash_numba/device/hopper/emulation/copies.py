"""The copy engine: boxes of a tensor to shared memory and back, swizzled."""

import numpy as np

from ..layouts import CHUNK_BYTES, ITEM_BYTES, ROWS_OF_ATOM, swizzle_of
from .barriers import barrier_of_copy, channel_of

PER_CHUNK = CHUNK_BYTES // ITEM_BYTES
SHARED_LINE_BYTES = 128
"""Pieces that a copy of numbers is moved in, as lines of a box are moved one by one."""


def map_address(context, tensor_map):
    """On a CPU the map stands for its own address."""
    return tensor_map


def lines_of(context, tensor_map, shared, origin):
    """For each line of a box its 16-byte chunks: (place in shared memory, index or None)."""
    array, rows, columns = tensor_map
    line_bytes = columns * ITEM_BYTES
    per_chunk = CHUNK_BYTES // shared.itemsize
    if shared.shape != (rows, line_bytes // shared.itemsize):
        raise context.error(
            "asynchronous copy",
            f"the map's box is {rows} x {columns}, the shared array has shape {shared.shape} of "
            f"{shared.itemsize}-byte elements",
        )
    first = shared.address(shared.place((0, 0)))
    if first % (ROWS_OF_ATOM * line_bytes):
        raise context.error(
            "misaligned access",
            f"a box with lines of {line_bytes} bytes must start on a multiple of "
            f"{ROWS_OF_ATOM * line_bytes} bytes of shared memory, got {first}",
        )
    column, row, head, batch = (int(c) for c in origin)
    for r in range(rows):
        line = []
        for chunk in range(columns // PER_CHUNK):
            place = r, (chunk ^ int(swizzle_of(r, line_bytes))) * per_chunk
            index = batch, row + r, head, column + chunk * PER_CHUNK
            inside = all(0 <= i < n for i, n in zip(index, array.shape, strict=True))
            line.append((place, index if inside else None))
        yield line


def load(context, to, source, c0, c1, c2, c3, bars, index):
    """The box arrives at once, but may be read only after the barrier's phase."""
    deliver(context, source, lines_of(context, source, to, (c0, c1, c2, c3)), to, bars, index)


def deliver(context, source, lines, to, bars, index):
    """Copy the lines of a box into shared memory and tell the barrier of its bytes.

    A line comes whole, zeros for what lies beside the tensor included; Nsight counts it so.
    """
    array, barrier = source[0], barrier_of_copy(context, bars, index)
    zeros = (0,) * (CHUNK_BYTES // to.itemsize)
    moved = []
    with context.copy(channel_of(bars, index), barrier.phase + 1):
        for line in lines:
            for place, inside in line:
                to.store_vector(
                    place, zeros if inside is None else array.load_vector(inside, PER_CHUNK)
                )
            first = line[0][1]
            start = 0 if first is None else array.address(array.place(first))
            moved.append((start, CHUNK_BYTES * len(line)))
        context.moved(to, "store", CHUNK_BYTES, moved)
    barrier.missing -= sum(size for _, size in moved)
    barrier.advance(context.sync)


def bulk_load(context, to, source, at, count, bars, index):
    """`count` numbers arrive at once, but may be read only after the barrier's phase."""
    barrier, row = barrier_of_copy(context, bars, index), tuple(int(i) for i in at)
    per_chunk = CHUNK_BYTES // source.itemsize
    with context.copy(channel_of(bars, index), barrier.phase + 1):
        for first in range(0, int(count), per_chunk):
            place = (*row[:-1], row[-1] + first)
            to.store_vector((first,), source.load_vector(place, per_chunk))
        context.moved(to, "store", CHUNK_BYTES, pieces_of(to, source, row, int(count)))
    barrier.missing -= int(count) * source.itemsize
    barrier.advance(context.sync)


def pieces_of(to, source, at, count: int) -> list[tuple[int, int]]:
    """First byte in global memory and bytes of what goes to each line of shared memory."""
    start, target = source.address(source.place(at)), to.address(to.place((0,) * to.ndim))
    size, found = count * source.itemsize, []
    while size > 0:
        piece = min(SHARED_LINE_BYTES - target % SHARED_LINE_BYTES, size)
        found.append((start, piece))
        start, target, size = start + piece, target + piece, size - piece
    return found


def _channel(context):
    return ("bulk", context.thread.tid)


def store(context, source, c0, c1, c2, c3, tensor):
    """The box leaves at once, but its shared memory may be written only after a wait."""
    if min(int(c) for c in (c0, c1, c2, c3)) < 0:
        raise context.error(
            "out of bounds",
            "a bulk store may hang over the end of its tensor, but must not begin before it: "
            f"coordinates {tuple(map(int, (c0, c1, c2, c3)))}",
        )
    array, moved = tensor[0], []
    with context.grouped_copy(_channel(context), must_finish=True):
        for line in lines_of(context, tensor, source, (c0, c1, c2, c3)):
            for place, inside in line:
                values = source.load_vector(place, CHUNK_BYTES // source.itemsize)
                if inside is not None:
                    stored = np.array(values, source.dtype).view(array.dtype)
                    array.store_vector(inside, stored.tolist())
            inside = [index for _, index in line if index is not None]
            if inside:
                start = array.address(array.place(inside[0]))
                moved.append((start, CHUNK_BYTES * len(inside)))
        context.moved(array, "store", CHUNK_BYTES, moved)


def commit(context):
    """Close the thread's group of stores."""
    context.commit(_channel(context))


def wait_read(context):
    """The thread's committed stores have read their shared memory."""
    context.wait_groups(_channel(context))
