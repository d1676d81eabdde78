"""One event log of a run: every load, store, product and step, in order, with what it cost.

The log drives the stepper, plots and JSON. It is kept as columns (one list a field), saved as
``.npz`` without pickles, and replayed from a file without running anything again. Beside the
events it holds *watched* values: after every tile step the numbers of all rows that views show
(row_max, row_sum, ...), so any row can be followed without recomputing.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from functools import cached_property
from pathlib import Path

import numpy as np

LOAD, STORE, ACCUMULATE, PRODUCT, COMPUTE, FREE, REGISTER, FILL = range(8)
OPERATIONS = ("load", "store", "accumulate", "product", "compute", "free", "register", "fill")

COLUMNS = {
    "op": "index into OPERATIONS",
    "line": "index into the algorithm's lines",
    "name": "index into names: the tile or tensor",
    "rows": "rows of the tile",
    "cols": "columns of the tile (0: a vector)",
    "nbytes": "bytes of the tile on chip",
    "in_sram": "1 if the tile lives in SRAM",
    "kernel": "index into kernels",
    "block": "thread block within its kernel",
    "head": "query head, -1 outside",
    "m_block": "query tile at hand, -1 outside",
    "n_block": "key tile at hand, -1 outside",
    "hbm_read": "elements",
    "hbm_write": "elements",
    "sram_load": "elements",
    "sram_store": "elements",
    "matmul_flops": "FLOPs",
    "exp_count": "exponentials",
}
"""Columns of the log and what they hold (int64)."""

_DAMAGE = (
    *(OSError, EOFError, KeyError, ValueError, TypeError, IndexError, AttributeError),
    *(NotImplementedError, MemoryError, OverflowError, zipfile.BadZipFile, zlib.error),
)
"""What reading a damaged file raises."""

WATCHED_COLUMNS = 4
"""Leading columns kept of a watched matrix."""


class EventLog:
    """Events of one run, in order.

    Attributes
    ----------
    meta : dict
        JSON-able facts about the run: program, direction, sizes, capacity, algorithm lines,
        kernels, tile classes (see `simulator.run.simulate`).
    watched : dict of int to dict of str to float32 array
        After which event (its index) which values stood.
    """

    def __init__(self, meta: dict | None = None):
        self.meta = meta or {}
        self.names: list[str] = []
        self.watched: dict[int, dict[str, np.ndarray]] = {}
        self._name_index: dict[str, int] = {}
        self._rows: list[tuple[int, ...]] = []

    def __len__(self) -> int:
        return len(self._rows) if self._rows else len(self.columns["op"])

    def append(self, row: tuple[int, ...]) -> None:
        """Add one event: its values in the order of `COLUMNS`."""
        self._rows.append(row)

    def name_index(self, name: str) -> int:
        """The number by which events refer to `name`."""
        index = self._name_index.get(name)
        if index is None:
            index = self._name_index[name] = len(self.names)
            self.names.append(name)
        return index

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        """The finished log as one int64 array a column."""
        table = np.array(self._rows, np.int64).reshape(-1, len(COLUMNS))
        return {name: table[:, i] for i, name in enumerate(COLUMNS)}

    def save(self, path) -> None:
        """Write the log to `path` (.npz); an existing file is replaced only once all is written."""
        arrays = dict(self.columns)
        arrays["meta"] = np.array(json.dumps({**self.meta, "names": self.names}))
        keys = sorted({key for values in self.watched.values() for key in values})
        for key in keys:
            steps = [i for i, values in self.watched.items() if key in values]
            values = [self.watched[i][key] for i in steps]
            arrays[f"watched:{key}:events"] = np.array(steps, np.int64)
            arrays[f"watched:{key}:rows"] = np.array([len(v) for v in values], np.int64)
            columns = [v.shape[1] if v.ndim == 2 else 0 for v in values]
            arrays[f"watched:{key}:columns"] = np.array(columns, np.int64)
            arrays[f"watched:{key}:values"] = np.concatenate([v.ravel() for v in values])
        path = Path(path)
        partial = path.with_name(path.name + ".partial")
        try:
            with partial.open("wb") as file:
                np.savez_compressed(file, **arrays)  # pyright: ignore[reportArgumentType]
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise

    @classmethod
    def load(cls, path) -> EventLog:
        """Read a log that `save` wrote.

        Raises
        ------
        ValueError
            If the file is not a complete event log.
        """
        try:
            with Path(path).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                arrays = {key: file[key] for key in file.files}
            log = cls(json.loads(str(arrays["meta"])))
            log.names = log.meta.pop("names")
            log._name_index = {name: i for i, name in enumerate(log.names)}
            log.columns = {name: arrays[name] for name in COLUMNS}
            log._load_watched(arrays)
            log._check()
        except FileNotFoundError:
            raise
        except _DAMAGE as error:
            raise ValueError(
                f"event log must be a file written by EventLog.save, got {path}: {error}"
            ) from error
        return log

    def _load_watched(self, arrays) -> None:
        for key in [k[8:-7] for k in arrays if k.startswith("watched:") and k.endswith(":events")]:
            events, rows, columns = (
                arrays[f"watched:{key}:{part}"] for part in ("events", "rows", "columns")
            )
            ends = np.cumsum(rows * np.maximum(columns, 1))
            values = arrays[f"watched:{key}:values"]
            pieces = np.split(values, ends[:-1])
            for event, row, column, piece in zip(events, rows, columns, pieces, strict=True):
                shape = (row, column) if column else (row,)
                self.watched.setdefault(int(event), {})[key] = piece.reshape(shape)

    def _check(self) -> None:
        lengths = {len(column) for column in self.columns.values()}
        if len(lengths) != 1:
            raise ValueError(f"columns must have one length, got {sorted(lengths)}")
        for key in ("program", "direction", "lines", "kernels"):
            if key not in self.meta:
                raise ValueError(f"meta must hold {key!r}, got {sorted(self.meta)}")
        bounds = {"op": OPERATIONS, "name": self.names, "line": self.meta["lines"]}
        for key, allowed in bounds.items():
            column = self.columns[key]
            if column.size and not (column.min() >= 0 and column.max() < len(allowed)):
                raise ValueError(f"column {key!r} must lie in 0..{len(allowed) - 1}")
