"""Runs any Numba CUDA kernel on a CPU, thread by thread, and counts every access.

``trace(kernel)[grid, block, stream, shared_bytes](*args)`` takes a ``@cuda.jit`` kernel (of
numba-cuda or plain numba) or the plain Python function, launches it over NumPy arrays, which it
changes as a GPU would, and gives a `Report`. The kernel's module is not touched: the function's
source is rewritten (`rewrite`) against emulations of what its names stand for (`link`), with every
device function it calls, and runs on one greenlet a thread in a fixed order (`schedule`).

``print(report)`` shows totals, the dearest lines and what to look at, `warp` one instruction lane
by lane; ``report.count(space, operation, array, line)`` gives numbers, ``report.hardware()`` those
that Nsight Compute would show, ``report.as_dict()`` all of it for JSON.

Instructions of your own
------------------------
An intrinsic (``numba.cuda.extending.intrinsic``) is emulated by a Python function beside it, found
through attributes of the intrinsic:

``operation.emulate(*operands)``
    Gives the result for one thread. Scalars are NumPy floats and Python ints (unsigned ones are
    `scalars.Unsigned`, an int). Arrays in global and shared memory are `memory.Array`: they index
    like NumPy arrays, slices and ``reshape`` give views, and every access is counted at the call's
    source line. Local arrays are `local.LocalView`. Both have ``load_vector(index, n)``, a tuple
    of n neighbours of the last axis, and ``store_vector(index, values)``: one access of n elements,
    checked for alignment. An emulation that only returns None is dropped from the text, so
    that compiler hints cost nothing.
``operation.traffic`` (default "")
    ``"cp.async"``: the accesses within are an asynchronous copy. They are counted apart, and the
    shared memory written may not be read before ``"cp.async.wait..."``, the traffic of the
    intrinsic that waits for all copies of its thread. ``"acquire"`` and ``"release"``: loads and
    stores that order blocks; as with ``cuda.threadfence``, races between blocks are then not
    looked for.
``operation.scope`` (default "thread")
    ``"warp"``: `emulate` is called once when all lanes have come, each operand a tuple of the
    lanes' values, and returns a sequence of results, one a lane.

Names that are not emulated are errors that name the source line, before the kernel runs.
"""

from .errors import Finding, KernelError, Place
from .launch import trace
from .report import Report
from .views import advice, warp

__all__ = ["Finding", "KernelError", "Place", "Report", "advice", "trace", "warp"]
