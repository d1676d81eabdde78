"""What sets warpgroups apart: registers moved from one to another, and barriers by number."""

from functools import cache
from typing import Any

from ..numba_cuda import types
from ..ptx import emulated_by
from .assembly import as_int32, assembly, described
from .emulation import barriers


@cache
def make_set_registers(count: int, more: bool) -> Any:
    """``set_registers()``: ``setmaxnreg`` (PTX ISA 9.0, 9.7.19.5), how many a thread has.

    Parameters
    ----------
    count : int
        A multiple of 8 in 24..256.
    more : bool
        True takes registers, waiting until others gave theirs back; False gives back.

    Notes
    -----
    All warps of the warpgroup execute it. The kernel needs launch bounds.
    """
    if count % 8 or not 24 <= count <= 256:
        raise ValueError(f"count must be a multiple of 8 in 24..256, got {count}")
    text = f"setmaxnreg.{'inc' if more else 'dec'}.sync.aligned.u32 {count};"

    def typing(typingctx):
        def codegen(context, builder, signature, args):
            assembly(builder, text, [])
            return context.get_dummy_value()

        return types.void(), codegen

    operation = emulated_by(lambda: None)(typing)
    operation.__doc__ = "``setmaxnreg``; see `make_set_registers`."
    return operation


def _named(name, instruction, emulate, doc) -> Any:
    def typing(typingctx, number, threads):
        def codegen(context, builder, signature, args):
            operands = [
                as_int32(context, builder, kind, value)
                for kind, value in zip(signature.args, args, strict=True)
            ]
            assembly(builder, f"{instruction} $0, $1;", operands)
            return context.get_dummy_value()

        return types.void(number, threads), codegen

    typing.__name__ = name
    return described(typing, emulate, doc)


named_sync = _named(
    "named_sync",
    "bar.sync",
    barriers.named_sync,
    """``bar.sync`` (9.7.13.1): ``named_sync(number, threads)``, arrive and wait.

    It opens when `threads` threads (a multiple of 32) have arrived by this or `named_arrive`;
    number 0 is ``cuda.syncthreads``. All that wait in it do so at one place of the code.
    """,
)
named_arrive = _named(
    "named_arrive",
    "bar.arrive",
    barriers.named_arrive,
    "``bar.arrive`` (9.7.13.1): ``named_arrive(number, threads)``, arrive and go on.",
)


@cache
def make_meeting(number: int, threads: int) -> tuple[Any, Any]:
    """Operations ``sync()`` and ``arrive()``: `named_sync` and `named_arrive` for one barrier.

    With its numbers in the instruction: no registers are kept for them. The threads that wait may
    do so at several places: ``barrier.sync`` need not be one instruction for all, as ``bar.sync``
    must, which is short for ``barrier.sync.aligned``.
    """

    def operation(instruction, emulate):
        def typing(typingctx):
            def codegen(context, builder, signature, args):
                assembly(builder, f"{instruction} {number}, {threads};", [])
                return context.get_dummy_value()

            return types.void(), codegen

        doc = f"``{instruction}`` (9.7.13.1) of barrier {number} and {threads} threads."
        return described(typing, lambda context: emulate(context, number, threads), doc)

    sync = operation("barrier.sync", barriers.meet_anywhere)
    return sync, operation("bar.arrive", barriers.named_arrive)


@emulated_by(lambda x: x)
def made_here(typingctx, x):
    """`x` (an int32), but what follows from it is worked out after this point and not kept ready.

    Without it the compiler computes addresses ahead of a loop and keeps them in registers that are
    not there.
    """

    def codegen(context, builder, signature, args):
        value = as_int32(context, builder, x, args[0])
        (same,) = assembly(builder, "mov.b32 $0, $1;", [value], [value.type])
        return same

    return types.int32(x), codegen


made_here.follows = True


@emulated_by(lambda x, sum_of_weights: x)
def made_after(typingctx, x, sum_of_weights):
    """`x` (an int32), known only once `sum_of_weights` (a float32, not negative) is.

    ptxas moves arithmetic down over a wait that does not need it, and what was meant to run beside
    the products waited for then follows them. A barrier's parity that depends on the arithmetic
    keeps it ahead of the barrier.
    """

    def codegen(context, builder, signature, args):
        value = as_int32(context, builder, x, args[0])
        total = context.cast(builder, args[1], sum_of_weights, types.float32)
        text = "{ .reg .pred never; setp.lt.f32 never, $2, 0f00000000; "
        text += "selp.b32 $0, 2, $1, never; }"
        (same,) = assembly(builder, text, [value, total], [value.type])
        return same

    return types.int32(x, sum_of_weights), codegen


made_after.follows, made_after.values = True, (1,)
