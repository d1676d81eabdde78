"""What is installed here: versions, settings, driver and GPU, found without importing any of it.

The driver is asked in a process of its own, which may crash or hang without harm.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

CLONE = Path(__file__).parents[1]
"""The repository's folder, if the package is not a copy in ``site-packages``."""

PACKAGES = (
    "flash-numba",
    "numpy",
    "numba",
    "numba-cuda",
    "llvmlite",
    "torch",
    "textual",
    "rich",
    "typer",
    "ml_dtypes",
    "safetensors",
    "jupyterlab",
    "notebook",
    "matplotlib",
    "ipywidgets",
    "cuda-toolkit",
)
VARIABLES = ("NUMBA_ENABLE_CUDASIM", "NUMBA_FORCE_CUDA_CC", "NUMBA_DISABLE_JIT")

PROBE_SECONDS = 20
"""A driver that is starting up can take several seconds, one that hangs takes for ever."""

PROBE = """
import ctypes, json, sys
found = {"driver": None, "gpus": [], "no_gpu": None}
def done(why=None):
    found["no_gpu"] = why
    print(json.dumps(found))
    sys.exit()
name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
try:
    cuda = ctypes.CDLL(name)
except OSError:
    done(f"there is no NVIDIA driver ({name} is not found)")
number = ctypes.c_int()
if cuda.cuDriverGetVersion(ctypes.byref(number)) == 0:
    found["driver"] = f"{number.value // 1000}.{number.value % 1000 // 10}"
code = cuda.cuInit(0)
if code:
    done("the driver finds no GPU" if code == 100 else f"cuInit failed with error {code}")
cuda.cuDeviceGetCount(ctypes.byref(number))
for index in range(number.value):
    device, text = ctypes.c_int(), ctypes.create_string_buffer(256)
    cuda.cuDeviceGet(ctypes.byref(device), index)
    cuda.cuDeviceGetName(text, len(text), device)
    capability = []
    for attribute in (75, 76):  # compute capability, major and minor
        cuda.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
        capability.append(number.value)
    found["gpus"].append({"name": text.value.decode(), "compute_capability": capability})
done(None if found["gpus"] else "the driver finds no GPU")
"""
"""Prints what the CUDA driver says, as JSON."""


@dataclass(frozen=True)
class Facts:
    """What there is.

    Attributes
    ----------
    python, system : str
        Version, and operating system with architecture.
    packages : dict of str to str or None
        Installed versions.
    variables : dict of str to str
        Those of `VARIABLES` that are set.
    driver : str or None
        The newest CUDA version that the driver supports.
    gpus : list of dict
        ``name`` and ``compute_capability`` of each.
    no_gpu : str or None
        Why there is none.
    """

    python: str
    system: str
    packages: dict[str, str | None] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    driver: str | None = None
    gpus: list[dict] = field(default_factory=list)
    no_gpu: str | None = None


def pip_install(what: str) -> str:
    """The command that installs something into the Python that runs this.

    That need not be the one of the shell's `pip`, nor one whose environment is activated.
    """
    python = f'"{sys.executable}"' if " " in sys.executable else sys.executable
    return f"{python} -m pip install {what}"


def install_extra(extra: str, clone: Path = CLONE) -> str:
    """The command that adds an extra of this package, as editable if it is run from a clone.

    Parameters
    ----------
    extra : str
        A key of the optional dependencies in ``pyproject.toml``.
    clone : Path
        Where to look for a clone.
    """
    if (clone / "pyproject.toml").is_file():
        return pip_install(f'-e "{clone}[{extra}]"')
    return pip_install(f'"flash-numba[{extra}]"')


def look() -> Facts:
    """Gather the facts; nothing here fails."""
    return Facts(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        packages={name: _version(name) for name in PACKAGES},
        variables={name: os.environ[name] for name in VARIABLES if os.environ.get(name)},
        **ask_driver(),
    )


def ask_driver(probe: str = PROBE, seconds: float = PROBE_SECONDS) -> dict:
    """`driver`, `gpus` and `no_gpu` of `Facts`, from a process of its own."""
    nothing = {"driver": None, "gpus": []}
    if sys.platform == "darwin":
        return {**nothing, "no_gpu": "macOS has no CUDA"}
    try:
        asked = subprocess.run(
            [sys.executable, "-S", "-c", probe],
            capture_output=True,
            text=True,
            timeout=seconds,
            check=True,
        )
        return json.loads(asked.stdout)
    except subprocess.TimeoutExpired:
        return {**nothing, "no_gpu": f"the driver did not answer within {seconds} seconds"}
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        return {**nothing, "no_gpu": f"asking the driver failed: {error}"}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
