"""The only place that imports Numba's CUDA target.

`numba-cuda` is in maintenance mode, and plain numba (macOS) has an older copy of the same target:
everything that the kernels take from either goes through this file. With plain numba the kernels
import and can be traced on a CPU; compiling and launching them needs `numba-cuda`.
"""

from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

NUMBA_CUDA = find_spec("numba_cuda") is not None
"""True with the `numba-cuda` package, False with the CUDA target inside plain numba."""

# Names of kernel code are typed by Numba, not by a checker: hence Any.
cuda: Any = import_module("numba.cuda")
nvvm: Any = import_module("numba.cuda.cudadrv.nvvm")
ir: Any = import_module("llvmlite.ir")
_home = "numba.cuda" if NUMBA_CUDA else "numba.core"
cgutils: Any = import_module(f"{_home}.cgutils")
types: Any = import_module(f"{_home}.types")
_extending: Any = import_module(f"{_home}.extending")
if NUMBA_CUDA:
    intrinsic: Any = _extending.intrinsic
    overload: Any = _extending.overload
else:
    intrinsic = _extending.intrinsic(target="cuda")
    overload = partial(_extending.overload, target="cuda")

__all__ = ["NUMBA_CUDA", "cgutils", "cuda", "intrinsic", "ir", "kernel", "nvvm", "overload"]
__all__ += ["room", "types"]


def kernel(threads: int, blocks_per_sm: int = 1) -> Any:
    """Decorator: a CUDA kernel compiled for blocks of `threads` threads.

    Parameters
    ----------
    threads : int
        Threads of a block.
    blocks_per_sm : int
        Blocks that should fit on one multiprocessor: bounds the registers of a thread.
    """
    if NUMBA_CUDA:
        return cuda.jit(launch_bounds=(threads, blocks_per_sm))
    return cuda.jit


def room(function) -> Any:
    """Decorator: a device function, inlined into every kernel that calls it.

    Inlining costs nothing and is what keeps a thread's local arrays in registers.
    """
    if NUMBA_CUDA:
        return cuda.jit(device=True, forceinline=True)(function)
    return cuda.jit(device=True, inline=True)(function)
