"""Products of a warpgroup on NumPy, and registers that are not ours while one runs."""

from sys import getrefcount

import numpy as np

from ....problem import DTYPES
from ..layouts import CHUNK_BYTES, ITEM_BYTES, SwizzledTile

THREAD = np.arange(128)
FIRST_ROW = THREAD // 32 * 16 + THREAD % 32 // 4
FIRST_COLUMN = THREAD % 4 * 2
PER_CHUNK = CHUNK_BYTES // ITEM_BYTES


class RegistersInFlight(RuntimeError):
    """A register of a product that runs was used or overwritten."""

    finding_kind = "asynchronous copy"

    def __init__(self, where, what="used"):
        self.finding_places = (where,)
        super().__init__(
            f"a register of a wgmma product is {what} while the product runs: wait for its group "
            "first"
        )


class InFlight:
    """What stands in a register until its product was waited for; any use of it is an error.

    Attributes
    ----------
    value : number
    where : Place
        The product.
    """

    __slots__ = ("value", "where")

    def __init__(self, value, where):
        self.value, self.where = value, where


def _refuse(*operands):
    raise RegistersInFlight(next(x.where for x in operands if x.__class__ is InFlight))


_BINARY = "add sub mul truediv floordiv mod pow and or xor lshift rshift"
_OTHER = "lt le gt ge eq ne neg pos abs invert float int index bool array"
for _name in (*_BINARY.split(), *_OTHER.split(), *(f"r{name}" for name in _BINARY.split())):
    setattr(InFlight, f"__{_name}__", _refuse)
InFlight.__hash__ = object.__hash__


class Guarded(list):
    """A row of a local array, some of whose numbers are `InFlight`: they cannot be overwritten."""

    def __setitem__(self, j, value):
        if self[j].__class__ is InFlight:
            raise RegistersInFlight(self[j].where, "overwritten")
        super().__setitem__(j, value)


def columns_of(fragment_columns: int) -> np.ndarray:
    """Columns from its first on of a thread's part of the sums."""
    j = np.arange(fragment_columns)
    return 8 * (j // 2) + j % 2


def matrix_of_sums(parts: np.ndarray) -> np.ndarray:
    """The (64, n) sums from the threads' parts, of shape (128, 2, n // 4)."""
    columns = FIRST_COLUMN[:, None, None] + columns_of(parts.shape[2])
    rows = FIRST_ROW[:, None, None] + 8 * np.arange(2)[:, None]
    matrix = np.empty((64, parts.shape[2] * 4), parts.dtype)
    matrix[rows, columns] = parts
    return matrix


def parts_of_sums(matrix: np.ndarray) -> np.ndarray:
    """The inverse of `matrix_of_sums`."""
    columns = FIRST_COLUMN[:, None, None] + columns_of(matrix.shape[1] // 4)
    rows = FIRST_ROW[:, None, None] + 8 * np.arange(2)[:, None]
    return matrix[rows, columns]


def matrix_of_words(words: np.ndarray, dtype: str) -> np.ndarray:
    """The (64, 16 k) left operand in registers from words of shape (128, k, 4)."""
    stored = np.ascontiguousarray(words, np.uint32)
    pairs = stored.view(DTYPES[dtype]).reshape(128, -1, 2, 2, 2)  # thread, step, half, row, pair
    parts = pairs.transpose(0, 3, 1, 2, 4).reshape(128, 2, -1)
    return matrix_of_sums(parts.astype(np.float64))


def tile_from(shared, tile: SwizzledTile, rows: int, dtype: str) -> np.ndarray:
    """The first `rows` rows of a swizzled tile that starts where `shared` does, as float64.

    Parameters
    ----------
    shared : array of the thread runner
        16-bit elements of shape (panels, at least `rows`, panel).
    """
    flat = shared.flat()[shared.start :][: tile.panels * tile.rows * tile.panel]
    row, column = np.arange(rows)[:, None], np.arange(tile.columns)
    chunks = np.unique(tile.place(row, column // PER_CHUNK * PER_CHUNK))
    for place in chunks.tolist():
        panel, rest = divmod(place, tile.rows * tile.panel)
        shared.load_vector((panel, *divmod(rest, tile.panel)), PER_CHUNK)
    return flat[tile.place(row, column)].view(DTYPES[dtype]).astype(np.float64)


class Running:
    """The products of a warpgroup that were issued and not waited for."""

    def __init__(self):
        self.issued = self.done = 0
        self.groups: list[tuple[int, list]] = []

    @classmethod
    def of(cls, context) -> "Running":
        """Those of the running warpgroup."""
        return context.block.setdefault(("wgmma", context.thread.tid // 128), cls())


def _values(local) -> list:
    """A local array's numbers, also where an earlier product of the chain still makes them."""
    return [[x.value if x.__class__ is InFlight else x for x in row] for row in local.data]


def _occupy(context, arrays, values) -> list:
    """Put `InFlight` with new values into the threads' local arrays; gives them, row by row."""
    held = []
    for local, new in zip(arrays, values, strict=True):
        for i, numbers in enumerate(new):
            if getrefcount(local.data[i]) > 2:
                raise context.error("unsupported", "a view of a row of a product's local array")
            marks = [InFlight(number, context.place) for number in numbers]
            local.data[i] = Guarded(marks)
            held.append((local.data, i, marks))
    return held


def _give_back(rows: list, i: int, marks: list[InFlight]) -> None:
    """The numbers of a row whose product is done, but for those that a later one has taken over."""
    numbers = [x.value if x is mark else x for x, mark in zip(rows[i], marks, strict=True)]
    running = any(x.__class__ is InFlight for x in numbers)
    rows[i] = Guarded(numbers) if running else numbers


def _check_start(context, shared, tile: SwizzledTile) -> None:
    first = shared.address(shared.start)
    if first % tile.alignment:
        raise context.error(
            "misaligned access",
            f"a wgmma operand with lines of {tile.line_bytes} bytes must start on a multiple of "
            f"{tile.alignment} bytes of shared memory, got {first}",
        )


def multiply_tiles(dtype: str, a: SwizzledTile, b: SwizzledTile):
    """Emulation of `wgmma.make_multiply_tiles`."""

    def emulate(context, accs, left, right):
        running = Running.of(context)
        running.issued += 1
        for shared, tile in ((left[0], a), (right[0], b)):
            _check_start(context, shared, tile)
        with context.copy(("wgmma", context.thread.tid // 128), running.issued):
            A = tile_from(left[0], a, 64, dtype)
            B = tile_from(right[0], b, b.rows, dtype)
        sums = parts_of_sums((A @ B.T).astype(np.float32))
        running.groups.append((running.issued, _occupy(context, accs, sums)))

    return emulate


def add_product(dtype: str, depth: int, b: SwizzledTile):
    """Emulation of `wgmma.make_add_product`."""

    def emulate(context, accs, lefts, right):
        running = Running.of(context)
        running.issued += 1
        _check_start(context, right[0], b)
        with context.copy(("wgmma", context.thread.tid // 128), running.issued):
            B = tile_from(right[0], b, depth, dtype)
        words = [_values(left) for left in lefts]
        old = matrix_of_sums(np.array([_values(acc) for acc in accs], np.float64))
        sums = parts_of_sums((old + matrix_of_words(np.array(words), dtype) @ B).astype(np.float32))
        held = _occupy(context, lefts, words)
        running.groups.append((running.issued, held + _occupy(context, accs, sums)))

    return emulate


def multiply_columns(dtype: str, a: SwizzledTile, count: int, b: SwizzledTile, n: int):
    """Emulation of `wgmma.make_multiply_columns`."""
    panel = SwizzledTile(a.rows, a.panel, a.panel)

    def emulate(context, accs, left, right):
        running = Running.of(context)
        running.issued += 1
        _check_start(context, left[0], a)
        _check_start(context, right[0], b)
        with context.copy(("wgmma", context.thread.tid // 128), running.issued):
            parts = [tile_from(left[0][t : t + 1], panel, a.rows, dtype) for t in range(count)]
            B = tile_from(right[0], b, n, dtype)
        sums = parts_of_sums((np.concatenate(parts).T @ B.T).astype(np.float32))
        running.groups.append((running.issued, _occupy(context, accs, sums)))

    return emulate


def multiply_rows(dtype: str, a: SwizzledTile, b: SwizzledTile):
    """Emulation of `wgmma.make_multiply_rows`."""

    def emulate(context, accs, left, right):
        running = Running.of(context)
        running.issued += 1
        for shared, tile in ((left[0], a), (right[0], b)):
            _check_start(context, shared, tile)
        with context.copy(("wgmma", context.thread.tid // 128), running.issued):
            A = tile_from(left[0], a, 64, dtype)
            B = tile_from(right[0], b, a.columns, dtype)
        sums = parts_of_sums((A @ B).astype(np.float32))
        running.groups.append((running.issued, _occupy(context, accs, sums)))

    return emulate


def wait(pending: int):
    """Emulation of `wgmma.make_wait`: registers of finished groups hold their values again."""

    def emulate(context, *_):
        running = Running.of(context)
        running.done = max(running.done, running.issued - pending)
        for group, held in running.groups:
            if group > running.done:
                continue
            for row in held:
                _give_back(*row)
        running.groups = [one for one in running.groups if one[0] > running.done]
        if running.done:
            context.finish(("wgmma", context.thread.tid // 128), running.done)

    return emulate
