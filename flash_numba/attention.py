"""The public functions: attention forward and backward on whatever arrays the caller has.

Layout (batch, seqlen, heads, head_dim). Arrays on a GPU are used where they are, on the caller's
stream; arrays on the host are copied to a GPU and back or, where there is no GPU, answered by the
tile simulator, which is said once.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from . import gpu_call, ladder
from .arguments import Posed, pose
from .arrays import is_torch, kind_of
from .checks import finite, flag, shown
from .ladder import Gpu, NoGpu
from .problem import DTYPES
from .scores import check_differentiable
from .sequences import Packed

# An import inside of a call costs time, even one that is done already, and a name that is bound
# later would have torch.compile trace calls again.
torch_repeated: Any = None
if "torch" in sys.modules:
    from .interop import torch_repeated

NEEDS = ("q", "k", "v", "bias", "score_mod")
"""What `flash_attention_backward` has gradients of."""


class Gradients(NamedTuple):
    """Gradients of a loss, each of the kind, type and shape of its tensor; None if not asked for.

    Attributes
    ----------
    dq, dk, dv, dbias : array or None
    dscore_mod : array or None
        Of the tensor of the score_mod that has a gradient (``aux[aux_index]``).
    """

    dq: Any = None
    dk: Any = None
    dv: Any = None
    dbias: Any = None
    dscore_mod: Any = None


def flash_attention(
    q,
    k,
    v,
    *,
    scale=None,
    causal=False,
    window=(None, None),
    key_lengths=None,
    mask=None,
    bias=None,
    alibi_slopes=None,
    softcap=0.0,
    score_mod=None,
    mask_mod=None,
    block_mask=None,
    dropout_p=0.0,
    seed=None,
    deterministic=None,
    return_lse=False,
    kernel="auto",
) -> Any:
    """Attention: ``softmax(scores) @ v`` with ``scores = scale * q @ k.T``, changed and masked.

    The order is scale, softcap, ALiBi, bias, score_mod, masks, softmax, dropout. All masks combine
    by AND. A query that sees no key has o = 0, lse = -inf and zero gradients.

    Parameters
    ----------
    q : array of shape (batch, seqlen_q, num_heads, head_dim)
        float32, float16 or bfloat16 (float64 is refused: nothing here computes in it). NumPy,
        torch, CuPy, a Numba device array, or an object with ``__cuda_array_interface__`` or
        ``__dlpack__``; any strides. All arrays are of one kind, on one device.
    k : array of shape (batch, seqlen_k, num_kv_heads, head_dim)
    v : array of shape (batch, seqlen_k, num_kv_heads, head_dim_v)
        Of q's type. Query head h uses kv head ``h // (num_heads // num_kv_heads)``.
    scale : float, optional
        Any finite number; default 1/sqrt(head_dim).
    causal : bool
        A query sees the keys up to its own position; the last query sees the last key.
    window : tuple of (int or None, int or None)
        Keys seen before and after the own position, inclusive; None = unlimited.
    key_lengths : int array of shape (batch,), optional
        Keys that each sequence really has; the rest of k and v is never read. Best on the host:
        from a GPU they are copied, which waits for it.
    mask : bool array, optional
        True = attend. Broadcasts to (batch, num_heads, seqlen_q, seqlen_k).
    bias : array, optional
        Added to the scores; float32 or q's type. Broadcasts likewise, and its gradient has its own
        shape.
    alibi_slopes : float32 array of shape (num_heads,) or (batch, num_heads), optional
        ``-slope * |q_idx + seqlen_k - seqlen_q - k_idx|`` is added to the scores.
    softcap : float
        Scores become ``softcap * tanh(scores / softcap)``; 0 = none.
    score_mod : masks.ScoreMod or function, optional
        ``f(score, batch, head, q_idx, k_idx, aux) -> score``. A plain function gets ``aux = ()``
        and has no derivative: it serves the forward pass only.
    mask_mod : masks.Mask or function, optional
        ``f(batch, head, q_idx, k_idx, aux) -> bool``, True = attend.
    block_mask : tiling.BlockMask, optional
        A mask with a list of the tiles it leaves; the others are skipped.
    dropout_p : float
        Probability in [0, 1) that a softmax weight is dropped; the others grow by 1/(1-p).
    seed : int, optional
        64-bit key of the dropout mask; None draws a new one each call.
    deterministic : bool or None
        True asks for a backward that gives the same bits each time, False allows another; None
        allows it where the same bits cost more than a fifth of the time (`determinism.costs_much`),
        but not on torch tensors after ``torch.use_deterministic_algorithms(True)``.
    return_lse : bool
        Return lse too.
    kernel : str
        The rung to run, by name (see `explain`); "auto" = the fastest that can.

    Returns
    -------
    o : array of shape (batch, seqlen_q, num_heads, head_dim_v)
        Of q's kind and type.
    lse : float32 array of shape (batch, num_heads, seqlen_q)
        Natural log of each row's sum of exp(scores); only with `return_lse`.

    Raises
    ------
    ValueError, TypeError
        Naming the argument, what is allowed and what was received, before anything runs.

    Notes
    -----
    On torch tensors it is differentiable, lse included, and can be traced by ``torch.compile``.

    References
    ----------
    Dao, "FlashAttention-2", 2023, Algorithm 1.
    """
    plain = key_lengths is mask is bias is alibi_slopes is score_mod is mask_mod is block_mask
    if plain and mask is None and hasattr(q, "is_nested"):
        known = torch_repeated or _load_torch_repeated()
        # fmt: off
        found = known.repeated(
            q, k, v, scale, causal, window, softcap, dropout_p, seed,
            kernel, deterministic, return_lse,
        )
        # fmt: on
        if found is not None:
            return found
    options = {
        "scale": scale,
        "causal": causal,
        "window": window,
        "key_lengths": key_lengths,
        "mask": mask,
        "bias": bias,
        "alibi_slopes": alibi_slopes,
        "softcap": softcap,
        "score_mod": score_mod,
        "mask_mod": mask_mod,
        "block_mask": block_mask,
        "dropout_p": dropout_p,
        "seed": seed,
    }
    return_lse = flag("return_lse", return_lse)
    if is_torch(q):
        import flash_numba.interop.torch_eager as torch_eager

        return torch_eager.attention(q, k, v, kernel, deterministic, return_lse, options)
    if seed is None and finite("dropout_p", dropout_p):
        options["seed"] = draw_seed()
    o, lse = forward(pose(q, k, v, **options), kernel, deterministic)
    return (o, lse) if return_lse else o


def _load_torch_repeated() -> Any:
    """`interop.torch_repeated` where torch was loaded after this package."""
    import flash_numba.interop.torch_repeated as module

    return module


def standard_attention(q, k, v, **options) -> Any:
    """Attention the standard way, S and P in memory: `flash_attention` with ``kernel="standard"``.

    Parameters
    ----------
    q, k, v, **options
        As for `flash_attention`, less `kernel`.

    Returns
    -------
    As from `flash_attention`.
    """
    return flash_attention(q, k, v, kernel="standard", **options)


def flash_attention_backward(
    do,
    q,
    k,
    v,
    o,
    lse,
    *,
    dlse=None,
    needs=("q", "k", "v"),
    deterministic=None,
    kernel="auto",
    **options,
) -> Gradients:
    """Gradients of a loss from those of `flash_attention`'s outputs.

    Parameters
    ----------
    do : array of shape (batch, seqlen_q, num_heads, head_dim_v)
        Gradient of o, of q's type.
    q, k, v
        As for `flash_attention`.
    o, lse
        What it returned.
    dlse : float32 array of shape (batch, num_heads, seqlen_q), optional
        Gradient of lse.
    needs : sequence of str
        Which gradients to compute, of "q", "k", "v", "bias" and "score_mod".
    deterministic, kernel
        As for `flash_attention`.
    **options
        The other options of the forward call, the same ones. With dropout `seed` is needed: pass
        one to both calls.

    Returns
    -------
    Gradients

    Raises
    ------
    ValueError, TypeError
        Naming the argument, what is allowed and what was received; also if a score_mod has no
        derivative.

    Notes
    -----
    o and lse need not be of these keys alone: with those of all keys the gradients are the part
    that these keys have in the whole. The standard rung finds its own P and reads neither.

    References
    ----------
    Dao, "FlashAttention-2", 2023, Algorithm 2.
    """
    needs, options = checked_needs(needs), backward_options(options)
    posed = pose(q, k, v, needs=needs, **options)
    return backward(posed, needs, do, o, lse, dlse, kernel, posed.place.wished(deterministic))


def backward_options(options: dict[str, Any]) -> dict[str, Any]:
    """A forward call's options as a backward pass takes them, or a ValueError without a seed."""
    if options.get("dropout_p") and options.get("seed") is None:
        raise ValueError("seed must be the one of the forward call where dropout_p > 0, got None")
    return {name: value for name, value in options.items() if name != "return_lse"}


def explain(q, k, v, *, kernel="auto", deterministic=None, needs=(), **options) -> ladder.Choice:
    """Say which rung `flash_attention` would run for these arguments, and why no other.

    Parameters
    ----------
    q, k, v, kernel, deterministic, **options
        As for `flash_attention`; with `cu_seqlens_q` and `cu_seqlens_k` among them, as for
        `varlen.flash_attention_varlen`.
    needs : sequence of str
        Gradients that will be asked for, as for `flash_attention_backward`: "bias" and "score_mod"
        may be another rung's.

    Returns
    -------
    ladder.Choice
        Printed, it is a line for the rung that runs and one for each other rung.

    Raises
    ------
    ValueError, TypeError
        As `flash_attention`, but for a call that no rung can answer, which is explained.
    """
    options.pop("return_lse", None)
    if "cu_seqlens_q" in options or "cu_seqlens_k" in options:
        arrays = {name: options.pop(name, None) for name in Packed._fields}
        options["packed"] = Packed(**arrays)
    needs = checked_needs(needs)
    posed = pose(q, k, v, needs=needs, **options)
    asked_by = "" if deterministic is not None else posed.place.kind.asks_for_same_bits()
    return ladder.look(
        posed.problem,
        gpu_of(posed),
        kernel,
        posed.place.wished(deterministic),
        needs,
        posed.aligned,
        asked_by,
    )


def draw_seed() -> int:
    """A fresh 64-bit key for dropout."""
    return int(np.random.SeedSequence().generate_state(1, np.uint64)[0])


def forward(posed: Posed, kernel: str, deterministic: bool | None) -> tuple[Any, Any]:
    """O and lse of a posed problem."""
    gpu = gpu_of(posed)
    rung = ladder.choose(posed.problem, gpu, kernel, deterministic, aligned=posed.aligned)
    if isinstance(gpu, Gpu):
        with posed.place.kind.current(posed.like):
            return gpu_call.forward(rung, posed)
    found = _simulate(rung.programs[0], posed, gpu, direction="forward")
    kind, like = posed.place.kind, posed.like
    o = _rounded(found.arrays["O"], DTYPES[posed.problem.dtype])
    return kind.wrap(o, like), kind.wrap(found.arrays["LSE"], like)


def backward(
    posed: Posed, needs: Sequence[str], do, o, lse, dlse, kernel: str, deterministic: bool | None
) -> Gradients:
    """Gradients of a posed problem from arrays as they came."""
    problem, gpu = posed.problem, gpu_of(posed)
    rung = ladder.choose(problem, gpu, kernel, deterministic, needs, posed.aligned)
    check_differentiable(problem)
    given = posed.checked(do=do, o=o, lse=lse, dlse=dlse)
    if isinstance(gpu, Gpu):
        with posed.place.kind.current(posed.like):
            return Gradients(**gpu_call.backward(rung, posed, needs, **given))
    found = _simulate(rung.programs[1], posed, gpu, direction="backward", **given)
    gradients = {}
    for name in needs:
        if name in posed.at:
            tensor = kind_of(name, posed.tensors[name]).host(posed.tensors[name])
            total = np.zeros(tensor.shape)
            if problem.batch and problem.seqlen_q and problem.seqlen_k:
                total += found.aux[posed.at[name]].reshape(tensor.shape)
            gradient = _rounded(total, tensor.dtype)
        else:
            gradient = _rounded(found.arrays[f"d{name.upper()}"], DTYPES[problem.dtype])
        gradients[f"d{name}"] = posed.place.kind.wrap(gradient, posed.like)
    return Gradients(**gradients)


def gpu_of(posed: Posed) -> Gpu | NoGpu:
    """The GPU that a posed problem runs on, or why none can.

    Raises
    ------
    ValueError
        If its arrays are on a GPU where no kernel can run.
    """
    device = posed.place.device
    if posed.place.on_host:
        return ladder.find_gpu()
    gpu = ladder.find_gpu(int(device.partition(":")[2] or 0))
    if isinstance(gpu, NoGpu):
        raise ValueError(
            f"q, k and v must be on the host where no kernel can run, got them on "
            f"{device}; {gpu.reason}"
        )
    return gpu


def _simulate(program: str, posed: Posed, gpu: NoGpu, **options) -> Any:
    from simulator.run import simulate

    _say_once(gpu)
    tiles = posed.problem.block_mask or _Tiles()
    sizes = {"tile_m": tiles.tile_m, "tile_n": tiles.tile_n, "sram_bytes": None}
    arrays = (posed.arrays[name] for name in ("q", "k", "v"))
    with np.errstate(all="ignore"):  # overflow and NaN spread without a word, as on a GPU
        return simulate(program, posed.problem, *arrays, head=None, **sizes, **options)


class _Tiles(NamedTuple):
    """Of the simulator, whose answers do not depend on a capacity of SRAM."""

    tile_m: int = 64
    tile_n: int = 64


@cache
def _say_once(gpu: NoGpu) -> None:
    warnings.warn(
        f"{gpu.reason}; the tile simulator answers, which is right but slow (said once)",
        stacklevel=5,  # the caller of flash_attention, where nothing lies between
    )


def _rounded(array: np.ndarray, dtype) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(dtype)


def checked_needs(needs) -> tuple[str, ...]:
    """Names of gradients, or a single one, as a tuple; else a ValueError or TypeError."""
    if not isinstance(needs, str | Iterable):
        raise TypeError(f"needs must hold names of {', '.join(NEEDS)}; got {shown(needs)}")
    needs = (needs,) if isinstance(needs, str) else tuple(needs)
    for name in needs:
        if not isinstance(name, str) or name not in NEEDS:
            raise ValueError(f"needs must hold names of {', '.join(NEEDS)}; got {shown(name)}")
    return needs
