"""What a run moved and computed: the one type that programs, closed forms and tests compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class Counts:
    """Memory accesses and arithmetic of one pass, as docs/counting.md defines them.

    Attributes
    ----------
    reads, writes : dict of str to int
        Elements read from and written to HBM by tensor name; tensors without traffic are left out.
    hbm_bytes : int
        Bytes read and written together.
    sram_load_elements, sram_store_elements : int
        Elements taken from and put into SRAM.
    sram_peak_bytes : int or None
        The most that was resident at once; None for a baseline without a capacity.
    matmul_flops, exp_count, add_flops : int
        Work of products (2 a multiply-add), exponentials, and adds of accumulates into HBM.
    """

    reads: Mapping[str, int] = field(default_factory=dict)
    writes: Mapping[str, int] = field(default_factory=dict)
    hbm_bytes: int = 0
    sram_load_elements: int = 0
    sram_store_elements: int = 0
    sram_peak_bytes: int | None = 0
    matmul_flops: int = 0
    exp_count: int = 0
    add_flops: int = 0

    def __post_init__(self):
        for name in ("reads", "writes"):
            moved = {tensor: int(n) for tensor, n in sorted(getattr(self, name).items()) if n}
            object.__setattr__(self, name, moved)
        for name in _SCALARS:
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, int(value))

    @property
    def hbm_read_elements(self) -> int:
        """Elements read from HBM, all tensors."""
        return sum(self.reads.values())

    @property
    def hbm_write_elements(self) -> int:
        """Elements written to HBM, all tensors."""
        return sum(self.writes.values())

    @property
    def hbm_elements(self) -> int:
        """Elements read and written."""
        return self.hbm_read_elements + self.hbm_write_elements

    def __add__(self, other: Counts) -> Counts:
        """One pass after another: everything adds up, the SRAM peak is the higher one."""
        if not isinstance(other, Counts):
            return NotImplemented
        summed = {name: getattr(self, name) + getattr(other, name) for name in _SUMMED}
        mine, theirs = self.sram_peak_bytes, other.sram_peak_bytes
        return Counts(
            _merged(self.reads, other.reads),
            _merged(self.writes, other.writes),
            sram_peak_bytes=None if mine is None or theirs is None else max(mine, theirs),
            **summed,
        )

    def __mul__(self, times: int) -> Counts:
        """The same pass several times: everything but the SRAM peak multiplies."""
        return Counts(
            {name: n * times for name, n in self.reads.items()},
            {name: n * times for name, n in self.writes.items()},
            sram_peak_bytes=self.sram_peak_bytes,
            **{name: getattr(self, name) * times for name in _SUMMED},
        )

    def to_json(self) -> dict[str, Any]:
        """Plain dict: the totals under the names of `compare --json`, and the tensors' shares."""
        return {
            "hbm_read_elements": self.hbm_read_elements,
            "hbm_write_elements": self.hbm_write_elements,
            **{name: getattr(self, name) for name in _SCALARS},
            "reads": dict(self.reads),
            "writes": dict(self.writes),
        }


_SCALARS = [field.name for field in fields(Counts) if field.name not in ("reads", "writes")]
_SUMMED = [name for name in _SCALARS if name != "sram_peak_bytes"]


def _merged(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
    return {name: a.get(name, 0) + b.get(name, 0) for name in a.keys() | b.keys()}
