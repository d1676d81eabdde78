"""What is installed here, what will run, what will not, and why.

Looking and judging are apart: `look` gathers `Facts`, `judge` is a function of them alone. Nothing
that is judged is imported; the driver is asked in a process of its own, which may crash or hang.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from dataclasses import asdict, dataclass, field

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

    python: str = "3.13.0"
    system: str = "Linux x86_64"
    packages: dict[str, str | None] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    driver: str | None = None
    gpus: list[dict] = field(default_factory=list)
    no_gpu: str | None = None


@dataclass(frozen=True)
class Verdict:
    """One thing that will run or not.

    Attributes
    ----------
    what : str
    works : bool
    why : str
    install : str or None
        What would make it work.
    """

    what: str
    works: bool
    why: str
    install: str | None = None


@dataclass(frozen=True)
class Report:
    """Facts, what is wrong with them, and what will run."""

    facts: Facts
    problems: list[str]
    verdicts: list[Verdict]

    def to_json(self) -> dict:
        """Plain dicts and lists."""
        return asdict(self)

    def text(self) -> str:
        """Lines for a terminal; words, not colours, say what works."""
        facts = self.facts
        lines = [f"Python {facts.python} on {facts.system}", ""]
        lines += [
            f"  {name:<14}{found or 'not installed'}" for name, found in facts.packages.items()
        ]
        lines += [f"  {name}={value}" for name, value in facts.variables.items()]
        lines += ["", f"CUDA driver: {f'up to CUDA {facts.driver}' if facts.driver else 'none'}"]
        for gpu in facts.gpus:
            major, minor = gpu["compute_capability"]
            lines.append(f"GPU: {gpu['name']}, compute capability {major}.{minor}")
        if facts.no_gpu:
            lines.append(f"GPU: none, {facts.no_gpu}")
        lines += ["", *(f"problem: {problem}" for problem in self.problems)]
        lines += [""] if self.problems else []
        for verdict in self.verdicts:
            lines.append(f"{'works' if verdict.works else 'no':<6} {verdict.what}: {verdict.why}")
            if verdict.install:
                lines.append(f"       {verdict.install}")
        return "\n".join(lines)


def examine() -> Report:
    """Look and judge."""
    facts = look()
    return Report(facts, problems(facts), judge(facts))


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


def problems(facts: Facts) -> list[str]:
    """Versions and settings known to break something, each with what to do."""
    have = facts.packages
    found = []
    if have.get("numba-cuda") and _at_least(have.get("numpy"), 2, 5):
        found.append(
            f"numpy {have['numpy']} with numba-cuda: every kernel fails to compile, because numpy "
            "2.5 removed np.row_stack; pip install 'numpy<2.5'"
        )
    if _at_least(have.get("numba"), 0, 69):
        found.append(
            f"numba {have['numba']} is newer than numba-cuda 0.30 was tested with; "
            "pip install 'numba<0.69'"
        )
    if have.get("numba-cuda") and not re.match(r"0\.30\.", have["numba-cuda"] or ""):
        found.append(
            f"numba-cuda {have['numba-cuda']} is not of the series that the kernels are written "
            "for; pip install 'numba-cuda==0.30.*'"
        )
    if "NUMBA_FORCE_CUDA_CC" in facts.variables:
        found.append(
            "NUMBA_FORCE_CUDA_CC is set: kernels lose the instructions of sm_90a; unset it"
        )
    if facts.variables.get("NUMBA_ENABLE_CUDASIM") not in (None, "0"):
        found.append(
            "NUMBA_ENABLE_CUDASIM is set: Numba's own simulator replaces the GPU, and has neither "
            "inline PTX nor shuffles; unset it"
        )
    if facts.variables.get("NUMBA_DISABLE_JIT") not in (None, "0"):
        found.append("NUMBA_DISABLE_JIT is set: Numba compiles nothing; unset it")
    return found


def judge(facts: Facts) -> list[Verdict]:
    """What will run here and what not."""
    return [
        Verdict("simulator, step, compare", True, "they need NumPy and rich, and no GPU"),
        _import_kernels(facts),
        _launch_kernels(facts),
        _optional(facts, "torch", "tests against PyTorch"),
        _optional(facts, "safetensors", "input from .safetensors"),
    ]


def _import_kernels(facts: Facts) -> Verdict:
    what, have = "importing Numba CUDA kernels", facts.packages
    if not have.get("numba"):
        return Verdict(what, False, "numba is not installed", "pip install 'numba<0.69'")
    if not have.get("numba-cuda"):
        return Verdict(what, True, "numba is enough to import kernels, not to launch them")
    return Verdict(what, True, f"numba-cuda {have['numba-cuda']}")


def _launch_kernels(facts: Facts) -> Verdict:
    what, have = "running Numba CUDA kernels on a GPU", facts.packages
    if facts.system.startswith("Darwin"):
        return Verdict(what, False, "macOS has no CUDA, and numba-cuda no macOS wheel")
    if not facts.gpus:
        return Verdict(what, False, facts.no_gpu or "there is no GPU")
    major = int((facts.driver or "12.0").split(".")[0])
    extra = "cu13" if major >= 13 else "cu12"
    install = f"pip install 'flash-numba[{extra}]' (the driver supports CUDA {facts.driver})"
    if major < 12:
        return Verdict(
            what, False, f"the driver stops at CUDA {facts.driver}", "a driver for CUDA 12"
        )
    if not have.get("numba-cuda"):
        return Verdict(what, False, "numba-cuda is not installed", install)
    if _at_least(have.get("numpy"), 2, 5):
        return Verdict(what, False, "numpy is too new for numba-cuda", "pip install 'numpy<2.5'")
    if not have.get("cuda-toolkit"):
        why = "the CUDA toolkit is not installed as wheels; one of the system may serve"
        return Verdict(what, True, why, install)
    return Verdict(what, True, f"numba-cuda {have['numba-cuda']} and {facts.gpus[0]['name']}")


def _optional(facts: Facts, package: str, what: str) -> Verdict:
    if version := facts.packages.get(package):
        return Verdict(what, True, f"{package} {version}")
    return Verdict(
        what, False, f"{package} is not installed", f"pip install 'flash-numba[{package}]'"
    )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _at_least(version: str | None, *least: int) -> bool:
    numbers = re.match(r"(\d+)\.(\d+)", version or "")
    return numbers is not None and tuple(int(n) for n in numbers.groups()) >= least
