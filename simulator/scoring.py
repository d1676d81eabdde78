"""Score changes, masks and dropout on the tile at hand: they work in place and count nothing."""

from __future__ import annotations

import numpy as np

from flash_numba.dropout import keep_mask
from flash_numba.problem import Problem
from flash_numba.scores import apply_scores, evaluate, score_gradient
from flash_numba.tiling import FULL

from .memory import Tile
from .walk import Walk

Place = tuple[Problem, int, int, np.ndarray, np.ndarray]


class Scoring(Walk):
    """A walk whose tiles of scores can be changed, masked and thinned out by dropout.

    `head` counts the heads of the machine; `rows` and `cols` are positions in the sequence.
    """

    problem: Problem
    data: dict[str, np.ndarray] | None
    aux_totals: list[np.ndarray | None] | None

    def changes(self, masked: bool) -> bool:
        """True if scores of the tile at hand change at all; `masked`: consider the masks too."""
        masks = masked and self._kind != FULL and self.problem.visibility is not None
        return masks or bool(self.problem.score_mods)

    def changed(
        self, scores: np.ndarray, head: int, rows: slice, cols: slice, masked: bool = True
    ) -> tuple[np.ndarray, tuple]:
        """Scores after the changes and masks, and the chain for `score_gradient`."""
        where = self._where(head, rows, cols)
        return apply_scores(*where, scores, masked=masked and self._kind != FULL)

    def score_gradient(
        self,
        d_scores: np.ndarray,
        chain: tuple,
        head: int,
        rows: slice,
        cols: slice,
        *,
        aux: bool = True,
    ) -> np.ndarray:
        """The gradient of Q Kᵀ from that of the changed scores, softmax_scale included.

        `aux`: add to the gradients of the changes' tensors, which one kernel of a program must do.
        """
        totals = self.aux_totals if aux else None
        raw = score_gradient(*self._where(head, rows, cols), d_scores, chain, totals)
        return raw * np.float32(self.problem.softmax_scale)

    def score_chain(self, head: int, rows: slice, cols: slice) -> tuple:
        """The chain of a program that no longer has the scores: made anew, and not counted."""
        if self.data is None or not self.problem.score_mods:
            return ()
        raw = self.data["Q"][head, rows] @ self.data["K"][cols].T
        raw *= np.float32(self.problem.softmax_scale)
        return self.changed(raw, head, rows, cols, masked=False)[1]

    def visible(self, head: int, rows: slice, cols: slice) -> np.ndarray:
        """What a mask of bytes would hold: 1.0 where attention is allowed, else 0.0."""
        mask, shape = self.problem.visibility, (rows.stop - rows.start, cols.stop - cols.start)
        if mask is None:
            return np.ones(shape, np.float32)
        _, *where = self._where(head, rows, cols)
        keep = evaluate(f"mask {mask.name!r}", mask.keep, *where, aux=mask.aux)
        return np.broadcast_to(keep, shape).astype(np.float32)

    def kept(self, head: int, rows: slice, cols: slice) -> np.ndarray | np.float32:
        """What dropout multiplies weights with: 0 or 1 / (1 - p)."""
        p = self.problem.dropout_p
        if p == 0:
            return np.float32(1)
        batch_head = self.batch * self.problem.num_heads + self.heads[head]
        keep = keep_mask(self.problem.seed, batch_head, *positions(rows, cols), p)
        return keep / np.float32(1 - p)

    def drop(self, tile: Tile, head: int, rows: slice, cols: slice) -> Tile:
        """The tile as seen through dropout."""
        if self.problem.dropout_p == 0 or tile.data is None:
            return tile
        return tile.view(tile.data * self.kept(head, rows, cols))

    def _where(self, head: int, rows: slice, cols: slice) -> Place:
        return self.problem, self.batch, self.heads[head], *positions(rows, cols)


def positions(rows: slice, cols: slice) -> tuple[np.ndarray, np.ndarray]:
    """Index arrays q_idx of shape (rows, 1) and k_idx of shape (1, cols)."""
    return np.arange(rows.start, rows.stop)[:, None], np.arange(cols.start, cols.stop)[None, :]
