"""Local arrays: nested lists, since that is what Python indexes fastest."""

from __future__ import annotations

from typing import Any

from .scalars import CASTS


class UninitialisedRead(RuntimeError):
    """An element of a local array was used before it was set."""

    finding_kind = "uninitialised read"

    def __init__(self, name: str):
        super().__init__(f"{name} of a local array is used before it is set")


class PartAssigned(RuntimeError):
    """An array was assigned to a part of a local array."""

    finding_kind = "unsupported"

    def __init__(self):
        super().__init__("an array as the value of a part of a local array: assign its elements")


class Unset:
    """What an element of a local array holds at first: every use of it is an error.

    Parameters
    ----------
    name : str
        The element, such as ``acc[3]``.
    """

    __slots__ = ("name",)

    def __init__(self, name: str):
        self.name = name

    def __repr__(self):
        return f"{self.name}, which is not set"


def _raise(self, *_):
    raise UninitialisedRead(self.name)


_BINARY = "add sub mul truediv floordiv mod pow and or xor lshift rshift"
_OTHER = "lt le gt ge eq ne neg pos abs invert float int index bool"
for _name in (*_BINARY.split(), *_OTHER.split()):
    setattr(Unset, f"__{_name}__", _raise)
    setattr(Unset, f"__r{_name}__", _raise)
Unset.__hash__ = object.__hash__


def maker(name: str, shape: tuple[int, ...]):
    """A function that makes a local array, as nested lists of which no element is set."""

    def unset(index):
        return Unset(f"{name}[{', '.join(map(str, index))}]")

    def template(index=()):
        inner = range(shape[len(index)])
        make = unset if len(index) == len(shape) - 1 else template
        return [make((*index, i)) for i in inner]

    first: Any = template()

    def copied(rows, axes):
        return [copied(row, axes - 1) for row in rows] if axes else rows[:]

    deep = len(shape) - 1
    makers = (first.copy, lambda: [row[:] for row in first], lambda: copied(first, deep))
    return makers[min(deep, 2)]


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
        index = index if isinstance(index, tuple) else (index,)
        if len(index) == len(self.shape) and not any(isinstance(i, slice) for i in index):
            row, i = self._row(index)
            row[i] = self.convert(value)
        elif hasattr(value, "__len__"):
            raise PartAssigned
        else:
            self._fill(self.data, index, self.convert(value), len(self.shape))

    def _fill(self, row, index, value, axes: int) -> None:
        """Set what `index`, integers and slices, chooses of a row of so many axes."""
        first, *rest = index or (slice(None),)
        chosen = range(*first.indices(len(row))) if isinstance(first, slice) else (first,)
        for i in chosen:
            if axes == 1:
                row[i] = value
            else:
                self._fill(row[i], rest, value, axes - 1)

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
