"""The only place that imports Numba's CUDA target.

`numba-cuda` is in maintenance mode, and plain numba (macOS) has an older copy of the same target:
everything that the kernels take from either goes through this file. With plain numba the kernels
import and can be traced on a CPU; compiling and launching them needs `numba-cuda`.
"""

from importlib.util import find_spec

import numba.cuda.cudadrv.nvvm as nvvm
from llvmlite import ir
from numba import cuda

NUMBA_CUDA = find_spec("numba_cuda") is not None
"""True with the `numba-cuda` package, False with the CUDA target inside plain numba."""

if NUMBA_CUDA:
    from numba.cuda import cgutils, types
    from numba.cuda.extending import intrinsic, overload
else:
    from functools import partial

    from numba.core import cgutils, types
    from numba.core.extending import intrinsic as _intrinsic
    from numba.core.extending import overload as _overload

    intrinsic = _intrinsic(target="cuda")
    overload = partial(_overload, target="cuda")

__all__ = ["NUMBA_CUDA", "cgutils", "cuda", "intrinsic", "ir", "kernel", "nvvm", "overload"]
__all__ += ["room", "types"]


def kernel(threads: int, blocks_per_sm: int = 1):
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


def room(function):
    """Decorator: a device function, inlined into every kernel that calls it.

    Inlining costs nothing and is what keeps a thread's local arrays in registers.
    """
    if NUMBA_CUDA:
        return cuda.jit(device=True, forceinline=True)(function)
    return cuda.jit(device=True, inline=True)(function)
