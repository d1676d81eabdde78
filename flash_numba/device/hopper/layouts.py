"""How 16-bit tiles lie in shared memory, and the 64-bit words that describe them to wgmma.

A tile of (rows, columns) is cut into *panels* of 64 (or 32) columns. A panel's row is one line of
128 (or 64) bytes, and the lines follow one another. Within each line the 16-byte chunks are
permuted by the row number - the copy engine's *swizzle* - so that eight rows of one chunk column,
which a warp touches together, lie in eight different groups of banks::

    line 0:  0 1 2 3 4 5 6 7      chunk c of row r of a 128-byte line
    line 1:  1 0 3 2 5 4 7 6      lies at place c ^ (r % 8)
    line 2:  2 3 0 1 6 7 4 5
    ...                           (64-byte lines: c ^ (r // 2 % 4))

References
----------
PTX ISA 9.0, sections 5.5.7 ("Swizzling modes") and 9.7.15.5.1 ("Register fragments and shared
memory matrix layouts").
"""

from typing import NamedTuple

ITEM_BYTES, CHUNK_BYTES = 2, 16
ROWS_OF_ATOM = 8
"""The swizzle repeats after this many lines."""

SWIZZLE_CODES = {128: 1, 64: 2, 32: 3}
"""Bits 62 and 63 of a matrix descriptor, by bytes of a line."""


class SwizzledTile(NamedTuple):
    """A tile of 16-bit elements in shared memory: an array of shape (panels, rows, panel).

    Attributes
    ----------
    rows, columns : int
        `columns` is a multiple of `panel`.
    panel : int
        Columns of a panel: 64, or 32.
    """

    rows: int
    columns: int
    panel: int = 64

    @property
    def panels(self) -> int:
        """Panels side by side."""
        return self.columns // self.panel

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the array that holds the tile."""
        return self.panels, self.rows, self.panel

    @property
    def line_bytes(self) -> int:
        """Bytes of a panel's row: the width of the swizzle."""
        return self.panel * ITEM_BYTES

    @property
    def panel_bytes(self) -> int:
        """Bytes from one panel to the next."""
        return self.rows * self.line_bytes

    @property
    def size(self) -> int:
        """Elements."""
        return self.rows * self.columns

    @property
    def bytes(self) -> int:
        """Bytes of the tile."""
        return self.size * ITEM_BYTES

    @property
    def alignment(self) -> int:
        """Bytes that the tile's first address must be a multiple of."""
        return ROWS_OF_ATOM * self.line_bytes

    def place(self, row, column):
        """Element of the flat tile where (row, column) lies; numbers or arrays."""
        per_chunk = CHUNK_BYTES // ITEM_BYTES
        panel, column = column // self.panel, column % self.panel
        chunk = (column // per_chunk) ^ swizzle_of(row, self.line_bytes)
        line = panel * self.rows + row
        return line * self.panel + chunk * per_chunk + column % per_chunk

    def by_rows(self) -> int:
        """Descriptor of the tile as an operand whose depth runs along a row ("K-major").

        The stride is that between groups of eight rows; the leading offset has no use here.
        """
        return matrix_descriptor(CHUNK_BYTES, self.alignment, self.line_bytes)

    def by_columns(self) -> int:
        """Descriptor of the tile as an operand whose depth runs down the rows ("MN-major").

        The stride is that between groups of eight rows, the leading offset that between panels.
        """
        return matrix_descriptor(self.panel_bytes, self.alignment, self.line_bytes)

    def step_along_row(self, step: int) -> int:
        """Bytes from the tile's start to columns ``16 * step``."""
        panel, column = divmod(16 * step, self.panel)
        return panel * self.panel_bytes + column * ITEM_BYTES

    def step_down_rows(self, step: int) -> int:
        """Bytes from the tile's start to row ``16 * step``."""
        return 16 * step * self.line_bytes


def swizzle_of(row, line_bytes: int):
    """What the number of a 16-byte chunk is XORed with in line `row`."""
    lines_of_128 = 128 // line_bytes
    return row // lines_of_128 % (line_bytes // CHUNK_BYTES)


def matrix_descriptor(leading_bytes: int, stride_bytes: int, line_bytes: int) -> int:
    """A wgmma matrix descriptor without its start address (PTX ISA 9.0, 9.7.15.5.1.2.2).

    Parameters
    ----------
    leading_bytes, stride_bytes : int
        The "leading dimension" and "stride dimension" byte offsets, multiples of 16 below 256 KB.
    line_bytes : int
        Width of the swizzle: a key of `SWIZZLE_CODES`.

    Returns
    -------
    int
        Bits 16-29 and 32-45: the offsets / 16; bits 62-63: the swizzle. The start address / 16
        goes into bits 0-13; the base offset (bits 49-51) is 0, as tiles start on a multiple of
        `SwizzledTile.alignment`.

    Raises
    ------
    ValueError
        If a size is not one of those.
    """
    for name, size in (("leading_bytes", leading_bytes), ("stride_bytes", stride_bytes)):
        if size % 16 or not 0 <= size < 1 << 18:
            raise ValueError(f"{name} must be a multiple of 16 below {1 << 18}, got {size}")
    if line_bytes not in SWIZZLE_CODES:
        raise ValueError(f"line_bytes must be one of {[*SWIZZLE_CODES]}, got {line_bytes}")
    code = SWIZZLE_CODES[line_bytes]
    return code << 62 | (stride_bytes >> 4) << 32 | (leading_bytes >> 4) << 16
