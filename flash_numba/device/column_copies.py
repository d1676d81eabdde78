"""Moving a tile of rows into shared memory transposed: each column becomes a row.

An outer product reads one column of both factors at a time. Here columns come in fours, padded:
column d of row r lies at ``[d // 4, d % 4 * width + skewed(r)]`` of an array of `column_shape`.
Eight lanes copy neighbouring fours of a row (a whole line of global memory) and meet no bank
conflict, as 4 times the width, plus 4, is 4 or 20 modulo the 32 banks.
"""

from functools import cache

from .copies import LANES, make_read4
from .numba_cuda import cuda, room, types
from .ptx import recomputed
from .ptx_copies import copy4_async
from .unroll import unroll_full


def column_width(rows: int, group: int) -> int:
    """Length of a column: `rows`, with 4 floats more between its halves if `group` is 8."""
    return rows + 4 * (group // 4 - 1)


def column_shape(depth: int, rows: int, group: int) -> tuple[int, int]:
    """Shape of a transposed tile of `rows` rows and `depth` columns in shared memory."""
    return depth // 4, 4 * column_width(rows, group) + 4


@cache
def make_skew(group: int):
    """Room ``skewed(row)``: where a row lies within a column.

    Lane x of eight reads rows ``group * x`` on, 16 bytes at a time. With 8 rows a lane, lanes x and
    x + 4 would meet in one bank: the second half of a column is moved by 4.
    """

    @room
    def skewed(row):
        if group == 8:
            return row + row // 32 * 4
        return row

    return skewed


@cache
def make_load_columns(
    dtype: str,
    columns: int,
    depth: int,
    rows: int,
    group: int,
    threads: int,
    vectors: bool,
    asynchronous: bool,
    parts: int = 1,
):
    """Room ``load_columns(sX, gX, first_row, row_stop, tid, part)``: a tile, transposed.

    Parameters are those of `copies.make_load_rows`; a thread of the product reads `group` rows,
    4 or 8 (then of 64 rows). One call loads one of `parts` equal parts of the rows.

    Notes
    -----
    Reads each valid element of the tile once. Rows from `row_stop` on are zeros.
    """
    rows_at_once = threads // LANES
    if rows % (rows_at_once * parts):
        raise ValueError(
            f"rows must be a multiple of threads / {LANES} times parts, "
            f"got rows={rows}, threads={threads} and parts={parts}"
        )
    if group not in (4, 8) or (group == 8 and rows != 64):
        raise ValueError(f"group must be 4, or 8 of 64 rows, got group={group} of {rows} rows")
    passes, chunks = rows // rows_at_once // parts, depth // (4 * LANES)
    width = column_width(rows, group)
    skewed = make_skew(group)
    read4 = make_read4(dtype, columns, vectors)

    @room
    def load_columns_async(sX, gX, first_row, row_stop, tid, part):
        tid = recomputed(tid)  # or every address waits in a register for the next tile
        four, row = tid % LANES, tid // LANES + part * (passes * rows_at_once)
        for p in range(passes):
            unroll_full()
            at = first_row + row + p * rows_at_once
            place = skewed(row + p * rows_at_once)
            for c in range(chunks):
                unroll_full()
                first = four + c * LANES
                valid = (at < row_stop) & (4 * first < columns)
                for e in range(4):
                    unroll_full()
                    copy4_async(sX, (first, e * width + place), gX, (at, 4 * first + e), valid)

    @room
    def load_columns(sX, gX, first_row, row_stop, tid, part):
        rX = cuda.local.array((chunks, 4), types.float32)
        four, row = tid % LANES, tid // LANES + part * (passes * rows_at_once)
        for p in range(passes):
            unroll_full()
            at = first_row + row + p * rows_at_once
            place = skewed(row + p * rows_at_once)
            for c in range(chunks):
                unroll_full()
                values = read4(gX, at, 4 * (four + c * LANES), row_stop)
                rX[c, 0], rX[c, 1], rX[c, 2], rX[c, 3] = values
            for c in range(chunks):
                unroll_full()
                for e in range(4):
                    unroll_full()
                    sX[four + c * LANES, e * width + place] = rX[c, e]

    return load_columns_async if asynchronous else load_columns
