"""Compiling kernels without a GPU: to PTX with Numba, to machine code where ptxas is."""

import re
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from ..device.numba_cuda import cuda


class Resources(NamedTuple):
    """What ptxas reports of one kernel, a thread if not said otherwise.

    Attributes
    ----------
    registers : int
    spill_bytes : int
        Stored and loaded again because registers ran out.
    stack_bytes : int
        Local memory: arrays that are not in registers.
    """

    registers: int
    spill_bytes: int
    stack_bytes: int


@contextmanager
def pretend(cc: tuple[int, int]):
    """Let Numba, and so a rung's functions, find a GPU of a compute capability.

    It has no memory and runs nothing: kernels are compiled for it, and plans `plan.Noted`.
    """
    device = SimpleNamespace(compute_capability=cc, id=0, MULTIPROCESSOR_COUNT=1)
    compiler, dispatcher, devices = (
        import_module(f"numba.cuda.{home}")
        for home in ("compiler", "dispatcher", "cudadrv.devices")
    )
    changes: list[tuple[Any, str, Any]] = [
        (devices, "get_context", lambda *_: SimpleNamespace(device=device)),
        (dispatcher._Kernel, "bind", lambda _: None),  # machine code is not loaded
    ]
    changes += [
        (home, "get_current_device", lambda: device) for home in (cuda, compiler, dispatcher)
    ]
    kept = [(home, name, getattr(home, name)) for home, name, _ in changes]
    for home, name, found in changes:
        setattr(home, name, found)
    try:
        yield
    finally:
        for home, name, found in kept:
            setattr(home, name, found)


def compile_ptx(kernel, signature, cc: tuple) -> str:
    """PTX of a kernel for compute capability `cc`, such as (8, 0) or (9, 0, "a").

    Parameters
    ----------
    kernel : numba kernel
    signature : tuple of Numba types
        See `launch.argument_types`.
    """
    with pretend(cc[:2]):
        ptx, _ = cuda.compile(
            kernel.py_func,
            signature,
            device=False,
            abi="numba",
            cc=cc,
            launch_bounds=kernel.targetoptions.get("launch_bounds"),
        )
    return ptx


def static_shared_bytes(ptx: str) -> int:
    """Shared memory of a block that a kernel in PTX declares itself, besides the dynamic part."""
    return sum(map(int, re.findall(r"\.shared\b.*\.b8 \w+\[(\d+)\]", ptx)))


def find_ptxas() -> str | None:
    """Path of the assembler: the one installed with the compiler's wheels, else on the PATH."""
    from cuda.pathfinder import find_nvidia_binary_utility

    return find_nvidia_binary_utility("ptxas") or shutil.which("ptxas")


def ptxas_release() -> str | None:
    """CUDA release of that assembler, such as ``13.0``; None without one."""
    ptxas = find_ptxas()
    if ptxas is None:
        return None
    text = subprocess.run([ptxas, "--version"], capture_output=True, text=True, check=True).stdout
    return re.findall(r"release (\d+\.\d+)", text)[0]


def assemble(ptx: str, cc: tuple) -> Resources:
    """Assemble PTX with `find_ptxas`.

    Raises
    ------
    FileNotFoundError
        Without ptxas.
    RuntimeError
        With the assembler's message if it fails.
    """
    ptxas = find_ptxas()
    if ptxas is None:
        raise FileNotFoundError("ptxas must be installed (pip install nvidia-cuda-nvcc)")
    arch = "sm_" + "".join(str(part) for part in cc)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx)
        command = [ptxas, f"-arch={arch}", "-v", str(source), "-o", str(source.with_suffix(".o"))]
        run = subprocess.run(command, capture_output=True, text=True)
    report = run.stdout + run.stderr
    if run.returncode != 0:
        raise RuntimeError(f"ptxas -arch={arch} failed: {report}")

    if re.search(r"wgmma\S* instructions are serialized", report):
        raise RuntimeError(f"ptxas -arch={arch} takes the asynchrony out of wgmma: {report}")

    def number(pattern) -> int:
        return int(re.findall(pattern, report)[0])

    return Resources(
        number(r"Used (\d+) registers"),
        number(r"(\d+) bytes spill stores"),
        number(r"(\d+) bytes stack frame"),
    )
