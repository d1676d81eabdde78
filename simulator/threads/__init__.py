"""Runs any Numba CUDA kernel on a CPU, thread by thread, and counts every access.

``trace(kernel)[grid, block, stream, shared_bytes](*args)`` takes a ``@cuda.jit`` kernel (of
numba-cuda or plain numba) or the plain Python function, launches it over NumPy arrays, which it
changes as a GPU would, and gives a `Report`. The kernel's module is not touched: the function's
source is rewritten (`rewrite`) against emulations of what its names stand for (`link`), with every
device function it calls, and runs on one greenlet a thread in a fixed order (`schedule`).

Blocks run one after the other, but for those of a cluster (``trace(kernel, cluster=2)``; the
instructions are in ``flash_numba.device.hopper.clusters``) and for kernels that call
``cuda.cg.this_grid().sync()``: their blocks run at once, a barrier of the block then orders its own
threads only, and races between them are found like others. ``cuda.activemask()`` gives all lanes
that come the same way; a GPU may give fewer. Fences and atomic operations, as flags and locks use
them, order nothing in the search for races (`races`).

What a run does not show: that global memory is read which nobody wrote is noticed in arrays of
floats that were all NaN at launch, and in no others - an array of integers looks like an input. And
each operation on floats rounds, as the source has it; Numba's compiler makes a product and a sum
one ``fma``, which rounds once: the last bits of a GPU's results may be others.

``print(report)`` shows totals, the dearest lines and what to look at, `warp` one instruction lane
by lane, `beside_hardware` what is predicted from the source beside what Nsight Compute measured,
and `tile_table` traffic by tile step beside the tile simulator's; ``report.count(space, operation,
array, line)`` gives numbers, ``report.hardware()`` those that Nsight Compute would show,
``report.as_dict()`` all of it for JSON.

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
``operation.scope`` (default "thread")
    ``"warp"`` or ``"warpgroup"``: `emulate` is called once when all 32 lanes or 128 threads have
    come, each operand a tuple of the threads' values (of their local arrays, if that is what they
    hand over), and returns a sequence of results, one a thread. Memory is best touched by the
    threads: ``operation.fetch(*operands)`` runs in each of them before, and `emulate` gets the
    tuple of what they fetched instead of the operands; ``operation.put(result, *operands)`` runs in
    each of them afterwards.
``operation.context`` (default False)
    True: `emulate`, `fetch` and `put` get a `context.Context` before the operands. It knows the
    running thread and keeps state of the block; ``wait`` stops a thread until a condition holds (a
    deadlock's report says for what), ``meet`` is a barrier of a number of threads, ``release`` and
    ``acquire`` order threads for the search for races, ``cluster`` and ``peer`` give the blocks
    that run at once and their shared memory, ``at_end`` looks at a thread that returns, ``copy``
    makes accesses those of an asynchronous copy, and ``finish`` says that it was waited for.
    ``array.memory.objects`` is a dict for the state of what lies in shared memory, such as an
    mbarrier, empty at a block's start.
``operation.traffic`` (default "")
    What the accesses within are counted as. ``"cp.async"``: copies of their thread's open group;
    ``"cp.async.commit_group"``, ``"cp.async.wait_group"`` (its first operand says how many groups
    may stay under way) and ``"cp.async.wait_all"`` close groups and wait. ``"bulk"`` and
    ``"wgmma"``, like ``"cp.async"``, do not go through the load/store unit: no passes over shared
    memory. All that `emulate` accesses in these two counts as one instruction of each warp that
    takes part, or as ``operation.instructions`` of them: it must not wait in between, nor be helped
    by `fetch` and `put`. ``"ldmatrix"`` and ``"stmatrix"`` are counted like loads and stores, but
    their instructions apart. ``"acquire"`` and ``"release"``: loads and stores of an element (the
    first two operands are array and index) that order threads of blocks that run at once
    (``trace(kernel, cluster=2)`` makes any kernel's blocks do so). Between other blocks races are
    then not looked for, as nowhere between blocks with ``cuda.threadfence``.
``operation.values``
    Positions of operands that are moved or computed with: they decide neither what is accessed nor
    whether. To declare it, if with ``()``, also says that the addresses follow from the operands
    and not from what the instruction reads. With ``blocks="representative"`` every block runs if
    another operand depends on numbers from memory, or if an instruction that may access memory
    declares nothing (`alike`).
``operation.follows`` (default False)
    True: it gives one of its operands (those in `values` apart), or computes with operators alone,
    so that an integer that is known in all blocks stays so.
``operation.flops`` (default: by name, if its operands and its result are floats)
    Floating-point operations of the whole instruction by kind, such as ``{"matmul": 4096}``.

Names that are not emulated are errors that name the source line, before the kernel runs.
"""

from .errors import Finding, KernelError, Place
from .launch import tensor_map, trace
from .report import Report
from .views import advice, beside_hardware, tile_table, warp

__all__ = [
    "Finding",
    "KernelError",
    "Place",
    "Report",
    "advice",
    "beside_hardware",
    "tensor_map",
    "tile_table",
    "trace",
    "warp",
]
