"""Q, K and V from a file, from the demo's real transformer layer, or drawn at random.

A file is checked before anything runs: what is wrong with it is one sentence. Pickles are refused,
because opening one can run code.
"""

from __future__ import annotations

import zipfile
from importlib import resources
from os import PathLike
from pathlib import Path

import numpy as np

from flash_numba.checks import one_of, shown, whole
from flash_numba.problem import DTYPES, Problem, check_problem, dtype_name

from .installation import install_extra

NAMES = ("q", "k", "v")
LAYOUT = "(batch, seqlen, heads, head_dim)"
ALLOWED = (
    f"input must be .npz with q, k and v of {LAYOUT}, .npy of (3, batch, seqlen, heads, head_dim), "
    "or .safetensors with q, k and v"
)
NO_PICKLES = "pickled Python objects are refused, since opening them can run code"
NO_BF16 = "(bf16 and fp8 lose their type in .npy and .npz; .safetensors keeps bf16)"


class _Refused(ValueError):
    """A file that can be read, and is not what is allowed."""


def load_input(path, *, dtype: str | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Q, K and V of a file.

    Parameters
    ----------
    path : str or Path
        ``.npz`` or ``.safetensors`` with q of (batch, seqlen_q, num_heads, head_dim), k of (batch,
        seqlen_k, num_kv_heads, head_dim) and v of (batch, seqlen_k, num_kv_heads, head_dim_v),
        other arrays beside them being ignored; or ``.npy`` of (3, batch, seqlen, heads, head_dim),
        the three stacked.
    dtype : str, optional
        Element type to round to, a key of `DTYPES`; None keeps that of q, and makes fp32 of one
        that is not among them (float64).

    Returns
    -------
    q, k, v : arrays of one dtype, all values finite

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        Naming what is allowed and what was received; also for safetensors when it is not installed.
    """
    if not isinstance(path, str | PathLike):
        raise TypeError(f"input must be a path, got {shown(path)}")
    path = Path(path)
    if dtype is not None:
        one_of("dtype", dtype, DTYPES)
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"{ALLOWED}; got {path} ({NO_PICKLES})")
    if not path.exists():
        raise FileNotFoundError(f"{ALLOWED}; got {path}, which does not exist")
    if not path.is_file() and not path.is_dir():
        raise ValueError(f"{ALLOWED}; got {path}, which is no regular file")
    try:
        arrays = reader(path)
    except _Refused:
        raise
    except Exception as error:  # a zip member has any of a dozen codecs, each with its own
        raise ValueError(f"{ALLOWED}; got {path}, which cannot be read: {_line(error)}") from error
    return _checked(path, arrays, dtype)


def demo_input() -> tuple[np.ndarray, np.ndarray, np.ndarray, list[str]]:
    """What one layer of a real transformer is given for a paragraph of English.

    Returns
    -------
    q, k, v : float16 arrays of shape (1, 206, 12, 32)
    tokens : list of 206 str
        The WordPiece of each row; see simulator/data/README.md.
    """
    data = resources.files("simulator") / "data" / "minilm_layer.npz"
    with resources.as_file(data) as path, np.load(path, allow_pickle=False) as file:
        q, k, v = (file[name] for name in NAMES)
        return q, k, v, file["tokens"].tolist()


def random_input(problem: Problem, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Normal q, k and v for a problem, in its dtype.

    Returns
    -------
    q : array of shape (batch, seqlen_q, num_heads, head_dim)
    k : array of shape (batch, seqlen_k, num_kv_heads, head_dim)
    v : array of shape (batch, seqlen_k, num_kv_heads, head_dim_v)
    """
    check_problem(problem)
    rng = np.random.default_rng(whole("seed", seed, 0))
    b, m, kv = problem.batch, problem.seqlen_k, problem.num_kv_heads
    q = rng.standard_normal((b, problem.seqlen_q, problem.num_heads, problem.head_dim))
    k = rng.standard_normal((b, m, kv, problem.head_dim))
    v = rng.standard_normal((b, m, kv, problem.head_dim_v))
    dtype = DTYPES[problem.dtype]
    return q.astype(dtype), k.astype(dtype), v.astype(dtype)


def _read_npy(path: Path) -> dict[str, np.ndarray]:
    with path.open("rb") as file:
        if file.read(1) == b"\x80":
            raise _Refused(f"{ALLOWED}; got {path}, a pickle: {NO_PICKLES}")
        file.seek(0)
        stacked = _read_array(path, file)
    if stacked.ndim != 5 or stacked.shape[0] != 3:
        raise _Refused(
            "input .npy must have shape (3, batch, seqlen, heads, head_dim), q, k and v stacked; "
            f"got {stacked.shape} in {path}"
        )
    return dict(zip(NAMES, stacked, strict=True))


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(path) as archive:
        arrays = [name for name in archive.namelist() if name.endswith(".npy")]
        _check_keys(path, [name.removesuffix(".npy") for name in arrays])
        found = {}
        for name in NAMES:
            with archive.open(f"{name}.npy") as file:
                found[name] = _read_array(path, file)
    return found


def _read_array(path: Path, file) -> np.ndarray:
    try:
        return np.lib.format.read_array(file, allow_pickle=False)
    except ValueError as error:
        if "allow_pickle" in str(error):
            raise _Refused(f"{ALLOWED}; got {path}, which holds objects: {NO_PICKLES}") from error
        raise


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    try:
        from safetensors import safe_open
    except ImportError:
        how = install_extra("safetensors")
        raise _Refused(f"reading {path} needs safetensors: {how}") from None
    with safe_open(path, framework="numpy") as file:
        _check_keys(path, list(file.keys()))
        return {name: file.get_tensor(name) for name in NAMES}


_READERS = {".npy": _read_npy, ".npz": _read_npz, ".safetensors": _read_safetensors}


def _check_keys(path: Path, present: list[str]) -> None:
    if missing := [name for name in NAMES if name not in present]:
        raise _Refused(
            f"input must hold arrays named q, k and v; {path} lacks {', '.join(missing)} "
            f"and holds {', '.join(sorted(present)) or 'nothing'}"
        )


def _checked(path: Path, arrays: dict[str, np.ndarray], dtype: str | None):
    for name, array in arrays.items():
        if not np.issubdtype(array.dtype, np.floating) and array.dtype not in DTYPES.values():
            hint = f" {NO_BF16}" if array.dtype.str in ("|V1", "|V2") else ""
            raise ValueError(f"{name} must hold floats, got dtype {array.dtype} in {path}{hint}")
    Problem.of(**arrays, dtype="fp32")
    if dtype is None:
        own = arrays["q"].dtype
        dtype = dtype_name(own) if own in DTYPES.values() else "fp32"
    q, k, v = (_rounded(path, name, arrays[name], dtype) for name in NAMES)
    return q, k, v


def _rounded(path: Path, name: str, array: np.ndarray, dtype: str) -> np.ndarray:
    finite = np.isfinite(array)
    if not finite.all():
        where = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise ValueError(
            f"{name} must be finite, got {array[where]} at {where} "
            f"({np.count_nonzero(~finite):,} such values) in {path}"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = array.astype(DTYPES[dtype])
    fits = np.isfinite(rounded)
    if not fits.all():
        where = tuple(int(i) for i in np.argwhere(~fits)[0])
        raise ValueError(f"{name} must fit {dtype}, got {array[where]} at {where} in {path}")
    return rounded


def _line(error: BaseException) -> str:
    """An error's message on one line."""
    return " ".join(str(error).split()) or type(error).__name__
