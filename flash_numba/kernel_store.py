"""Compiled kernels and plans on disk, for the processes to come.

Files are named by a hash of all that goes into them, so that no entry is ever wrong, only unused.
They lie in the user's cache folder, or where the variable FLASH_NUMBA_CACHE says ("0" = nowhere); a
kernel takes 50 to 300 KB, a plan a few. The folder may be deleted at any time.
"""

import hashlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .driver import Function

VARIABLE = "FLASH_NUMBA_CACHE"

KEPT = 8
"""Folders of other versions (of sources or packages) that are kept, the latest used."""

_PREFIX = "kernels-"

_PACKAGES = ("numba", "numba-cuda", "llvmlite", "numpy", "cuda-bindings", "cuda-core")
_PACKAGES += ("nvidia-nvvm", "nvidia-nvjitlink", "nvidia-cuda-nvrtc", "nvidia-cuda-nvcc")
_PACKAGES += ("nvidia-cuda-nvcc-cu12", "nvidia-nvjitlink-cu12", "nvidia-cuda-nvrtc-cu12")


def folder() -> Path | None:
    """Where the files of this version lie; None = nowhere."""
    chosen = os.environ.get(VARIABLE)
    if chosen == "0":
        return None
    if chosen:
        root = Path(chosen)
    else:
        from platformdirs import user_cache_path

        root = user_cache_path("flash_numba")
    return root / f"{_PREFIX}{environment()}"


@cache
def environment() -> str:
    """A hash of what every kernel depends on: this package, the compilers and their settings."""
    digest = hashlib.blake2b(digest_size=12)
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        source = path.read_bytes()
        digest.update(f"{path.relative_to(root)} {len(source)}\n".encode() + source)
    facts = [platform.machine(), sys.version, *map(_version, _PACKAGES)]
    facts += [f"{name}={os.environ[name]}" for name in sorted(os.environ) if _matters(name)]
    digest.update("\n".join(facts).encode())
    return digest.hexdigest()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _matters(variable: str) -> bool:
    return variable.startswith("NUMBA_") or variable in ("CUDA_HOME", "CUDA_PATH")


def key_of(kind: str, what: str) -> str:
    """Name of the file of one kind ("kernel", "plan") for what `what` describes."""
    return f"{kind}-{hashlib.blake2b(what.encode(), digest_size=20).hexdigest()}"


def load(key: str) -> bytes | None:
    """What `save` put under `key`; None if there is nothing, or nothing whole."""
    place = folder()
    if place is None:
        return None
    try:
        found = (place / key).read_bytes()
    except OSError:
        return None
    digest, content = found[:32], found[32:]
    return content if digest == hashlib.blake2b(content, digest_size=32).digest() else None


def save(key: str, content: bytes) -> None:
    """Write a file whole or not at all, whoever else writes it; a full disk is no error."""
    place = folder()
    if place is None:
        return
    temporary = None
    try:
        _make(place)
        with tempfile.NamedTemporaryFile(dir=place, prefix="writing-", delete=False) as file:
            temporary = file.name
            file.write(hashlib.blake2b(content, digest_size=32).digest() + content)
        os.replace(temporary, place / key)
    except OSError:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


@contextmanager
def alone(key: str) -> Iterator[None]:
    """Keep other processes out that want the same key, where files can be locked."""
    place = folder()
    try:
        import fcntl

        if place is None:
            raise OSError
        _make(place)
        path = place / f"lock-{key}"
        file = path.open("w")
    except (ImportError, OSError):
        yield
        return
    with file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:  # who waits has it open; who comes later finds what was kept
            path.unlink(missing_ok=True)


def _make(place: Path) -> None:
    """Make the folder of this version, in place of the oldest one."""
    if not place.is_dir():
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        _prune(place.parent)


def _prune(root: Path) -> None:
    """Delete the folders of versions that were used longest ago."""
    folders = [path for path in root.glob(f"{_PREFIX}*") if path.is_dir()]
    for old in sorted(folders, key=lambda path: path.stat().st_mtime)[: -KEPT - 1]:
        for path in old.iterdir():
            path.unlink(missing_ok=True)
        old.rmdir()


def load_kernel(key: str) -> tuple[bytes, str] | None:
    """Machine code of a kernel and its name in it."""
    found = load(key)
    if found is None:
        return None
    name, _, cubin = found.partition(b"\n")
    return cubin, name.decode()


def load_function(key: str, shared_bytes: int) -> Function | None:
    """A kernel as the driver has it, on the current GPU."""
    stored = load_kernel(key)
    try:
        return None if stored is None else Function(*stored, shared_bytes)
    except RuntimeError:  # whole, and yet not of this driver: as if it were not there
        return None


def save_kernel(key: str, cubin: bytes, name: str) -> None:
    """Keep the machine code of a kernel."""
    save(key, name.encode() + b"\n" + cubin)


def load_json(key: str) -> Any:
    """What `save_json` put under `key`; None if there is nothing."""
    found = load(key)
    return None if found is None else json.loads(found)


def save_json(key: str, content: Any) -> None:
    """Keep lists, dicts, texts and numbers."""
    save(key, json.dumps(content).encode())
