"""FlashAttention-2 with one bug each, to see beside the real one. The counts look right."""

from __future__ import annotations

import numpy as np

from ..machine import Machine
from . import flash2


def without_rescale(gpu: Machine) -> None:
    """O is not rescaled when the row maximum grows: older keys weigh too much."""
    flash2.forward(gpu, rescale=False)


def mask_off_by_one(gpu: Machine) -> None:
    """A tile masks as if its keys stood one place earlier: a query sees the key after its own."""
    change_scores = gpu.change_scores

    def too_late(line, rS, head, rows, cols, **options):
        return change_scores(line, rS, head, rows, slice(cols.start - 1, cols.stop - 1), **options)

    gpu.change_scores = too_late
    flash2.forward(gpu)


def mask_forgotten(gpu: Machine) -> None:
    """Tiles are skipped rightly, but a tile on the diagonal is used whole."""
    gpu.change_scores = lambda line, rS, head, rows, cols, **options: ()
    flash2.forward(gpu)


def tail_unmasked(gpu: Machine) -> None:
    """The rows of zeros that fill up the last key tile take part in the softmax."""
    tile = gpu.tile_n
    for schedule in gpu.schedules:
        schedule.cols = lambda n_block: slice(n_block * tile, (n_block + 1) * tile)
    for name in ("K", "V"):
        tensor = gpu.tensor(name)
        if tensor.data is not None:
            tensor.data = np.pad(tensor.data, ((0, -len(tensor.data) % tile), (0, 0)))
    flash2.forward(gpu)


def without_delta(gpu: Machine) -> None:
    """The backward takes dS = scale P ∘ dP: it forgets that the weights of a row sum to 1."""
    delta = gpu.tensor("delta")
    load = gpu.load

    def zeroed(line, region):
        tile = load(line, region)
        if region.tensor is delta and tile.data is not None:
            tile.data[:] = 0
        return tile

    gpu.load = zeroed
    flash2.backward(gpu)
