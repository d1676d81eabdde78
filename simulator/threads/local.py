"""Local arrays: nested lists, since that is what Python indexes fastest."""

from __future__ import annotations

from .scalars import CASTS


class UninitialisedRead(RuntimeError):
    """An element of a local array was used before it was set."""

    finding_kind = "uninitialised read"

    def __init__(self):
        super().__init__("an element of a local array is used before it is set")


class _Unset:
    """What a local array holds at first: every use of it is an error."""

    def __repr__(self):
        return "UNSET"


def _raise(*_):
    raise UninitialisedRead


_BINARY = "add sub mul truediv floordiv mod pow and or xor lshift rshift"
_OTHER = "lt le gt ge eq ne neg pos abs invert float int index bool"
for _name in (*_BINARY.split(), *_OTHER.split()):
    setattr(_Unset, f"__{_name}__", _raise)
    setattr(_Unset, f"__r{_name}__", _raise)
_Unset.__hash__ = object.__hash__

UNSET = _Unset()


class LocalView:
    """A local array where its shape is not known from the source, such as inside an intrinsic.

    Indexes like a NumPy array; also has `load_vector` and `store_vector`.
    """

    __slots__ = ("convert", "data", "dtype", "shape")

    def __init__(self, data: list, dtype: str, shape: tuple[int, ...]):
        self.data, self.dtype, self.shape = data, dtype, shape
        self.convert = CASTS[dtype]

    @property
    def ndim(self) -> int:
        """Axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Elements."""
        size = 1
        for n in self.shape:
            size *= n
        return size

    def __len__(self):
        return self.shape[0]

    def _row(self, index):
        row = self.data
        for i in index[:-1]:
            row = row[i]
        return row, index[-1]

    def __getitem__(self, index):
        row, i = self._row(index if isinstance(index, tuple) else (index,))
        return row[i]

    def __setitem__(self, index, value):
        row, i = self._row(index if isinstance(index, tuple) else (index,))
        row[i] = self.convert(value)

    def load_vector(self, index, n: int) -> tuple:
        """`n` neighbours of the last axis."""
        row, i = self._row(index if isinstance(index, tuple) else (index,))
        if i + n > len(row):
            raise IndexError("list index out of range")
        return tuple(row[i : i + n])

    def store_vector(self, index, values) -> None:
        """Write `values` to neighbours of the last axis."""
        row, i = self._row(index if isinstance(index, tuple) else (index,))
        for k, value in enumerate(values):
            row[i + k] = self.convert(value)
