"""A packed batch: sequences of different lengths behind each other, without padding.

Sequence b has the rows ``cu_seqlens[b]`` to ``cu_seqlens[b + 1]`` of q (and of o), or of k and v;
``seqused[b]``, if given, says how many of them, from the first on, count.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np


class Packed(NamedTuple):
    """What says where the sequences lie: arguments of `varlen.flash_attention_varlen`."""

    cu_seqlens_q: Any
    cu_seqlens_k: Any
    seqused_q: Any = None
    seqused_k: Any = None
    max_seqlen_q: int | None = None
    max_seqlen_k: int | None = None

    @property
    def arrays(self) -> dict[str, Any]:
        """The arrays by name; `seqused_q` and `seqused_k` may be None."""
        return dict(zip(self._fields[:4], self[:4], strict=True))


@dataclass(frozen=True, eq=False)
class Side:
    """Where the sequences' queries, or their keys, lie; known on the host.

    Parameters
    ----------
    total : int
        Rows of the packed tensor.
    starts : int64 array of shape (batch + 1,)
        Never falling, within 0..total.
    used : int64 array of shape (batch,)
        Rows that count, at most as many as a sequence has.
    """

    total: int
    starts: np.ndarray
    used: np.ndarray

    @classmethod
    def of(cls, total: int, starts, used=None) -> Side:
        """A side from `cu_seqlens` and `seqused` as they are given; lengths are clipped."""
        starts = np.asarray(starts, np.int64)
        rows = np.diff(starts)
        return cls(total, starts, rows if used is None else np.clip(used, 0, rows))

    def rows(self, batch: int) -> slice:
        """The rows of sequence `batch` that count."""
        first = int(self.starts[batch])
        return slice(first, first + int(self.used[batch]))

    @cached_property
    def outside(self) -> np.ndarray:
        """Rows that count in no sequence, which have 0 in results: bool array of shape (total,)."""
        found = np.ones(self.total, bool)
        for batch in range(len(self.used)):
            found[self.rows(batch)] = False
        return found


@dataclass(frozen=True, eq=False)
class Sequences:
    """The sequences of a packed batch.

    Parameters
    ----------
    total_q, total_k : int
        Rows of q and of k.
    queries, keys : Side or None
        None where `cu_seqlens` is on a GPU, which alone reads it.
    on_gpu : DeviceArray, optional
        Where the GPU puts `shift`; needed in that case.
    """

    total_q: int
    total_k: int
    queries: Side | None = None
    keys: Side | None = None
    on_gpu: Any = None

    @cached_property
    def shift(self) -> Any:
        """Keys minus queries of each sequence: int64 array of shape (batch,)."""
        if self.queries is None or self.keys is None:
            return self.on_gpu
        return self.keys.used - self.queries.used
