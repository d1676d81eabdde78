"""Asynchronous copies from global to shared memory, and the waits for them (PTX ISA 9.7.9.25.3).

A thread starts copies, closes those it has started into a *group*, and later waits until at most so
many of its groups are still under way. The data does not pass through registers. A wait is for the
thread's own copies: a barrier must follow before others read them. All need cc 8.0.
"""

from typing import Any

from .numba_cuda import ir, types
from .ptx import GLOBAL, I32, I64, SHARED, assembly, emulated_by, pointer_to


def _copy_async(name, text, size, doc) -> Any:
    """An intrinsic that starts a copy of `size` bytes."""

    def emulate(shared, to, source, index, valid):
        count = size // source.itemsize
        shared.store_vector(to, source.load_vector(index, count) if valid else (0,) * count)

    def typing(typingctx, shared, to, source, index, valid):
        def codegen(context, builder, signature, args):
            target = pointer_to(context, builder, shared, args[0], to, args[1])
            origin = pointer_to(context, builder, source, args[2], index, args[3])
            element = target.type.pointee
            target = builder.addrspacecast(target, ir.PointerType(element, SHARED))
            origin = builder.addrspacecast(origin, ir.PointerType(element, GLOBAL))
            source_size = builder.select(args[4], I32(size), I32(0))
            operands = [builder.ptrtoint(target, I32), builder.ptrtoint(origin, I64), source_size]
            nothing = ir.VoidType()
            assembly(builder, text, "r,l,r,~{memory}", operands, nothing, side_effect=True)
            return context.get_dummy_value()

        return types.void(shared, to, source, index, types.boolean), codegen

    typing.__name__ = name
    operation = emulated_by(emulate, traffic="cp.async")(typing)
    operation.__doc__ = doc
    return operation


copy16_async = _copy_async(
    "copy16_async",
    "cp.async.cg.shared.global [$0], [$1], 16, $2;",
    16,
    """``cp.async.cg.shared.global`` (9.7.9.25.3.1): start a copy of 16 bytes to shared memory.

    ``copy16_async(shared, to, source, index, valid)`` copies 4 float32 or 8 16-bit elements, past
    L1. Where `valid` is False nothing is read and zeros are written (source size 0). Both addresses
    are multiples of 16 bytes.
    """,
)
copy4_async = _copy_async(
    "copy4_async",
    "cp.async.ca.shared.global [$0], [$1], 4, $2;",
    4,
    """``cp.async.ca.shared.global`` (9.7.9.25.3.1): as `copy16_async`, 4 bytes, through L1.

    For rows that are no multiple of 16 bytes: 2 16-bit elements, or 1 float32.
    """,
)


def _no_operand(name, text, doc) -> Any:
    def typing(typingctx):
        def codegen(context, builder, signature, args):
            assembly(builder, text, "~{memory}", [], ir.VoidType(), side_effect=True)
            return context.get_dummy_value()

        return types.void(), codegen

    typing.__name__ = name
    operation = emulated_by(lambda: None, text.rstrip(";"))(typing)
    operation.__doc__ = doc
    return operation


copy_wait_all = _no_operand(
    "copy_wait_all",
    "cp.async.wait_all;",
    "``cp.async.wait_all`` (9.7.9.25.3.3): wait for every copy that this thread started.",
)
copy_commit = _no_operand(
    "copy_commit",
    "cp.async.commit_group;",
    "``cp.async.commit_group`` (9.7.9.25.3.2): close the copies started so far into a group.",
)


@emulated_by(lambda pending: None, traffic="cp.async.wait_group")
def copy_wait_group(typingctx, pending):
    """``cp.async.wait_group`` (9.7.9.25.3.3): wait until at most `pending` groups are under way.

    The latest ones may be; `pending` is a constant. Copies that no `copy_commit` followed are not
    waited for.
    """
    if not isinstance(pending, types.IntegerLiteral):
        return None
    text = f"cp.async.wait_group {pending.literal_value};"

    def codegen(context, builder, signature, args):
        assembly(builder, text, "~{memory}", [], ir.VoidType(), side_effect=True)
        return context.get_dummy_value()

    return types.void(pending), codegen
