"""What will run here, what will not, and why: judged from `installation.Facts` alone."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass

from . import learn
from .installation import Facts, install_extra, look, pip_install
from .restart import restart_advice

NUMPY = pip_install('"numpy<2.5"')
NUMBA = pip_install('"numba<0.69"')
NUMBA_CUDA = pip_install('"numba-cuda==0.30.*"')
"""Commands that bring the versions that the kernels are written for."""


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
    """Look and judge; in a notebook, also whether its kernel must be restarted."""
    facts = look()
    advice = restart_advice()
    return Report(facts, problems(facts) + ([advice] if advice else []), judge(facts))


def problems(facts: Facts) -> list[str]:
    """Versions and settings known to break something, each with what to do."""
    have = facts.packages
    found = []
    if have.get("numba-cuda") and _at_least(have.get("numpy"), 2, 5):
        found.append(
            f"numpy {have['numpy']} with numba-cuda: every kernel fails to compile, because numpy "
            f"2.5 removed np.row_stack; {NUMPY}"
        )
    if _at_least(have.get("numba"), 0, 69):
        found.append(
            f"numba {have['numba']} is newer than numba-cuda 0.30 was tested with; {NUMBA}"
        )
    if have.get("numba-cuda") and not re.match(r"0\.30\.", have["numba-cuda"] or ""):
        found.append(
            f"numba-cuda {have['numba-cuda']} is not of the series that the kernels are written "
            f"for; {NUMBA_CUDA}"
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
        _course(facts),
    ]


def _import_kernels(facts: Facts) -> Verdict:
    what, have = "importing Numba CUDA kernels", facts.packages
    if not have.get("numba"):
        return Verdict(what, False, "numba is not installed", NUMBA)
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
    install, reaches = install_extra(extra), f"the driver supports CUDA {facts.driver}"
    if major < 12:
        return Verdict(
            what, False, f"the driver stops at CUDA {facts.driver}", "a driver for CUDA 12"
        )
    if not have.get("numba-cuda"):
        return Verdict(what, False, f"numba-cuda is not installed; {reaches}", install)
    if _at_least(have.get("numpy"), 2, 5):
        return Verdict(what, False, "numpy is too new for numba-cuda", NUMPY)
    if not have.get("cuda-toolkit"):
        why = "the CUDA toolkit is not installed as wheels; one of the system may serve; "
        why += reaches
        return Verdict(what, True, why, install)
    return Verdict(what, True, f"numba-cuda {have['numba-cuda']} and {facts.gpus[0]['name']}")


def _optional(facts: Facts, package: str, what: str) -> Verdict:
    if version := facts.packages.get(package):
        return Verdict(what, True, f"{package} {version}")
    return Verdict(what, False, f"{package} is not installed", install_extra(package))


def _course(facts: Facts) -> Verdict:
    what, have = "the course of notebooks", facts.packages
    server, missing = learn.needs(lambda name: bool(have.get(name)))
    if server is None or missing:
        why = f"not installed: {', '.join(missing)}"
        return Verdict(what, False, why, install_extra("tutorials"))
    return Verdict(what, True, f"{server} {have[server]}")


def _at_least(version: str | None, *least: int) -> bool:
    numbers = re.match(r"(\d+)\.(\d+)", version or "")
    return numbers is not None and tuple(int(n) for n in numbers.groups()) >= least
