"""The ledger: every access that a program makes, added up by tensor, level and direction."""

from __future__ import annotations

from collections import defaultdict

from .counts import Counts


class Ledger:
    """Running totals of one program run.

    Attributes
    ----------
    times : int
        How often the step at hand happens. 1, except when a run of alike tiles is counted at once.
    hbm_read, hbm_write : dict of tensor name to elements
    sram_load, sram_store, matmul_flops, exp_count, add_flops : int
    """

    def __init__(self):
        self.times = 1
        self.hbm_read: dict[str, int] = defaultdict(int)
        self.hbm_write: dict[str, int] = defaultdict(int)
        self.itemsize: dict[str, int] = {}
        self.sram_load = self.sram_store = 0
        self.matmul_flops = self.exp_count = self.add_flops = 0

    def read(self, tensor, elements: int) -> None:
        """HBM read of `elements` elements of `tensor`."""
        self.itemsize[tensor.name] = tensor.itemsize
        self.hbm_read[tensor.name] += elements * self.times

    def write(self, tensor, elements: int) -> None:
        """HBM write of `elements` elements of `tensor`."""
        self.itemsize[tensor.name] = tensor.itemsize
        self.hbm_write[tensor.name] += elements * self.times

    def counts(self, sram_peak_bytes: int | None) -> Counts:
        """The totals as the record that the closed forms produce too."""
        moved = [*self.hbm_read.items(), *self.hbm_write.items()]
        return Counts(
            reads=self.hbm_read,
            writes=self.hbm_write,
            hbm_bytes=sum(n * self.itemsize[name] for name, n in moved),
            sram_load_elements=self.sram_load,
            sram_store_elements=self.sram_store,
            sram_peak_bytes=sram_peak_bytes,
            matmul_flops=self.matmul_flops,
            exp_count=self.exp_count,
            add_flops=self.add_flops,
        )
