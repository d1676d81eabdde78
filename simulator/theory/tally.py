"""From the sums of a closed form to `Counts`."""

from dataclasses import dataclass

from flash_numba.problem import Problem

from ..counts import Counts

_BYTES = {"LSE": 4, "m": 4, "l": 4, "delta": 4, "dLSE": 4, "mask": 1, "dropout": 1}


@dataclass(frozen=True)
class Sizes:
    """What a closed form needs to know besides `Visits`: d, v (columns) and bytes an element."""

    d: int
    v: int
    itemsize: int

    @classmethod
    def of(cls, problem: Problem) -> "Sizes":
        """The sizes of a problem."""
        return cls(problem.head_dim, problem.head_dim_v or problem.head_dim, problem.itemsize)

    def count(
        self,
        reads: dict[str, int],
        writes: dict[str, int],
        *,
        loads: int,
        stores: int,
        peak: int | None,
        products: int = 0,
        exp: int = 0,
        adds: int = 0,
    ) -> Counts:
        """Counts of one pass.

        Parameters
        ----------
        reads, writes : dict of str to int
            HBM elements by tensor.
        loads, stores : int
            SRAM elements.
        peak : int or None
            Bytes of the largest resident set.
        products : int
            Multiply-adds of all products.
        exp, adds : int
            Exponentials, and adds into HBM.
        """
        moved = [*reads.items(), *writes.items()]
        return Counts(
            reads,
            writes,
            hbm_bytes=sum(n * _BYTES.get(name, self.itemsize) for name, n in moved),
            sram_load_elements=loads,
            sram_store_elements=stores,
            sram_peak_bytes=peak,
            matmul_flops=2 * products,
            exp_count=exp,
            add_flops=adds,
        )
