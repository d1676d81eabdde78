"""What a tile of scores goes through before the softmax: scale, score changes, mask."""

from functools import cache

from ..device.fragments import ROWS, make_mask_range
from ..device.numba_cuda import room
from ..device.scores import make_change_scores, make_mask_scores, make_scale_scores
from .spec import Spec


@cache
def make_finish_scores(spec: Spec, columns: int, scale_first: bool):
    """Room ``finish_scores(rS, partial, first_q, first_k, ...)`` on a lane's part of the scores.

    Parameters
    ----------
    spec : Spec
    columns : int
        Columns of a lane's part.
    scale_first : bool
        Whether the scale is applied here.

    Notes
    -----
    `partial` says whether the tile needs the mask. A mask that is no more than its key range is
    applied by its ends (`fragments.make_mask_range`).
    """
    scale_scores = make_scale_scores(not scale_first, ROWS, columns)
    change_scores = make_change_scores(spec.changes, ROWS, columns, fragment=True)
    by_ends = spec.keep is None or (spec.exact and not spec.has_list)
    mask_range = make_mask_range(spec.key_range, columns)
    mask_scores = make_mask_scores(spec.keep, ROWS, columns, fragment=True)

    @room
    def finish_scores(
        rS, partial, first_q, first_k, seqlen_q, seqlen_k, batch, head, scale,
        mask_aux, range_aux, score_aux,
    ):  # fmt: skip
        scale_scores(rS, scale)
        change_scores(rS, first_q, first_k, seqlen_q, seqlen_k, batch, head, score_aux)
        if partial:
            if by_ends:
                mask_range(rS, first_q, first_k, seqlen_q, seqlen_k, batch, head, range_aux)
            else:
                mask_scores(rS, first_q, first_k, seqlen_q, seqlen_k, batch, head, mask_aux)

    return finish_scores
