"""dQ, to which blocks add in turns: float32 sums in global memory, in the order of the lanes.

Only the blocks of one kernel ever see the sums, so they lie as the lanes hold them: the four of a C
fragment, neighbours in registers too, then the next lane's. A warp's access is 512 bytes in a row.
The first to add does not read, and the last writes dQ itself.
"""

from functools import cache

from .fragment_products import make_mma
from .numba_cuda import room, types
from .ptx import load4_uncached, store4_global
from .ptx_words import store_word_global
from .unroll import unroll_full


@cache
def make_query_sums(rows: int, columns: int, threads: int):
    """Rooms ``read_sums(rX, gSums, first, tid)`` and ``write_sums(gSums, rX, tid)``.

    `rX` of shape (rows, columns), both even; `gSums` is a view of ``rows * columns * threads``
    float32. What `first` says is the first to add: it begins with 0.
    """

    @room
    def place_of(i, j, tid):
        return types.int64(tid * 4) + types.int64((i * columns // 4 + j // 2) * threads * 4)

    @room
    def read_sums(rX, gSums, first, tid):
        if first:
            for i in range(rows):
                unroll_full()
                for j in range(columns):
                    unroll_full()
                    rX[i, j] = 0
        else:
            for i in range(0, rows, 2):
                unroll_full()
                for j in range(0, columns, 2):
                    unroll_full()
                    four = load4_uncached(gSums, place_of(i, j, tid))
                    rX[i, j], rX[i, j + 1], rX[i + 1, j], rX[i + 1, j + 1] = four

    @room
    def write_sums(gSums, rX, tid):
        for i in range(0, rows, 2):
            unroll_full()
            for j in range(0, columns, 2):
                unroll_full()
                four = rX[i, j], rX[i, j + 1], rX[i + 1, j], rX[i + 1, j + 1]
                store4_global(gSums, place_of(i, j, tid), four)

    return read_sums, write_sums


@cache
def make_write_rounded(
    dtype: str, head_dim: int, rows: int, columns: int, spread: int, words: bool
):
    """Room ``write_rounded(gX, rX, first_row, row_stop, first_column, scale, lane)``.

    Parameters
    ----------
    dtype : str
        Of `gX`, a 2-D view (rows, columns) of 16-bit elements.
    head_dim : int
        Columns of `gX`.
    rows, columns : int
        Shape of a lane's fragments `rX`.
    spread : int
        The warp has 16 of every ``16 * spread`` columns, from `first_column` on.
    words : bool
        Two neighbours may be written at once.

    Notes
    -----
    Writes ``scale * X`` rounded. Row `first_row` of `gX` is the warp's first.
    """
    _, pack = make_mma(dtype)

    @room
    def write_rounded(gX, rX, first_row, row_stop, first_column, scale, lane):
        for i in range(rows):
            unroll_full()
            row = types.int32(first_row + 8 * i + lane // 4)
            for j in range(0, columns, 2):
                unroll_full()
                column = types.int32(first_column + j // 4 * 16 * spread + j % 4 * 4 + lane % 4 * 2)
                word = pack(rX[i, j] * scale, rX[i, j + 1] * scale)
                if row < row_stop and column < head_dim:
                    if words:
                        store_word_global(gX, (row, column), word)
                    else:
                        gX[row, column] = types.uint16(word & types.uint32(0xFFFF))
                        if column + 1 < head_dim:
                            gX[row, column + 1] = types.uint16(word >> types.uint32(16))

    return write_rounded
