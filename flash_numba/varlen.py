"""Attention on a packed batch: sequences of different lengths behind each other, no padding."""

from __future__ import annotations

from typing import Any

from .arguments import pose
from .arrays import is_torch
from .attention import Gradients, backward, backward_options, checked_needs, draw_seed, forward
from .checks import finite, flag
from .sequences import Packed


def flash_attention_varlen(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q=None,
    max_seqlen_k=None,
    *,
    seqused_q=None,
    seqused_k=None,
    scale=None,
    causal=False,
    window=(None, None),
    alibi_slopes=None,
    softcap=0.0,
    score_mod=None,
    mask_mod=None,
    dropout_p=0.0,
    seed=None,
    deterministic=None,
    return_lse=False,
    kernel="auto",
) -> Any:
    """`flash_attention` on sequences of different lengths that lie behind each other.

    Each sequence is a problem of its own: causal and windows are aligned to its last query and last
    key, and masks, score changes and dropout see positions within it and its number as `batch`.

    Parameters
    ----------
    q : array of shape (total_q, num_heads, head_dim)
    k : array of shape (total_k, num_kv_heads, head_dim)
    v : array of shape (total_k, num_kv_heads, head_dim_v)
        As for `flash_attention`.
    cu_seqlens_q, cu_seqlens_k : int32 arrays of shape (batch + 1,)
        Sequence b has the rows ``cu_seqlens[b]`` to ``cu_seqlens[b + 1]``, none if they are equal.
        Of q's kind, on its device; on the host lists will do.
    max_seqlen_q, max_seqlen_k : int, optional
        The longest sequences, which nothing here needs to know. Those who call other libraries
        with them may do so here; on the host they are checked.
    seqused_q, seqused_k : int32 arrays of shape (batch,), optional
        How many of a sequence's rows count, from its first one on; the others are never read.
    scale, causal, window, alibi_slopes, softcap, score_mod, mask_mod, dropout_p, seed
        As for `flash_attention`.
    deterministic, return_lse, kernel
        As for `flash_attention`.

    Returns
    -------
    o : array of shape (total_q, num_heads, head_dim_v)
        Of q's kind and type; 0 in rows that count in no sequence.
    lse : float32 array of shape (num_heads, total_q)
        -inf there; only with `return_lse`.

    Raises
    ------
    ValueError, TypeError
        Naming the argument, what is allowed and what was received, before anything runs.

    Notes
    -----
    On torch tensors it is differentiable, lse included, and can be traced by ``torch.compile``.

    Numbers on a GPU stay there, as reading them would wait for it, and cannot be checked: lengths
    that make no sense are clipped, so that nothing outside of the tensors is touched.
    """
    options = {
        "scale": scale,
        "causal": causal,
        "window": window,
        "key_lengths": None,
        "mask": None,
        "bias": None,
        "block_mask": None,
        "alibi_slopes": alibi_slopes,
        "softcap": softcap,
        "score_mod": score_mod,
        "mask_mod": mask_mod,
        "dropout_p": dropout_p,
        "seed": seed,
    }
    return_lse = flag("return_lse", return_lse)
    arrays = cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k
    packed = Packed(*arrays, max_seqlen_q, max_seqlen_k)
    if is_torch(q):
        from .interop import torch_eager

        wishes = kernel, deterministic, return_lse
        return torch_eager.attention(q, k, v, *wishes, options, packed)
    if seed is None and finite("dropout_p", dropout_p):
        options["seed"] = draw_seed()
    o, lse = forward(pose(q, k, v, packed=packed, **options), kernel, deterministic)
    return (o, lse) if return_lse else o


def flash_attention_varlen_backward(
    do,
    q,
    k,
    v,
    o,
    lse,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q=None,
    max_seqlen_k=None,
    *,
    seqused_q=None,
    seqused_k=None,
    dlse=None,
    needs=("q", "k", "v"),
    deterministic=None,
    kernel="auto",
    **options,
) -> Gradients:
    """Gradients of a loss from those of `flash_attention_varlen`'s outputs.

    Parameters
    ----------
    do : array of shape (total_q, num_heads, head_dim_v)
        Gradient of o, of q's type. Rows that count in no sequence are never used.
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q, seqused_k
        As for `flash_attention_varlen`.
    o, lse
        What it returned.
    dlse : float32 array of shape (num_heads, total_q), optional
        Gradient of lse.
    needs, deterministic, kernel, **options
        As for `attention.flash_attention_backward`.

    Returns
    -------
    Gradients
        0 in rows that count in no sequence.

    Raises
    ------
    ValueError, TypeError
        As there.
    """
    needs, options = checked_needs(needs), backward_options(options)
    arrays = cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k
    packed = Packed(*arrays, max_seqlen_q, max_seqlen_k)
    posed = pose(q, k, v, packed=packed, needs=needs, **options)
    return backward(posed, needs, do, o, lse, dlse, kernel, posed.place.wished(deterministic))
