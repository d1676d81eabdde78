"""Operands of wgmma in shared memory: the 64-bit numbers that say where one is and how it lies.

References
----------
PTX ISA 9.0, 9.7.15.5.1.2.2 ("Matrix descriptor format").
"""

from functools import cache
from typing import Any

from ..numba_cuda import ir, types
from ..ptx import I32, I64, emulated_by
from .assembly import assembly, shared_address


def described_operand(context, builder, kind, operand, descriptor: int):
    """An operand in shared memory as wgmma wants it, in code that is generated: a 64-bit number.

    Parameters
    ----------
    kind : Numba type
    operand : LLVM value
        An array that starts where the operand does, or what `make_operand` made of one.
    descriptor : int
        `SwizzledTile.by_rows` or `by_columns`: all but the address.
    """
    if isinstance(kind, types.Integer):
        return context.cast(builder, operand, kind, types.int64)
    address = shared_address(context, builder, kind, operand)
    units = builder.and_(builder.lshr(address, I32(4)), I32(0x3FFF))
    return builder.or_(builder.zext(units, I64), ir.Constant(I64, descriptor))


@cache
def make_operand(descriptor: int) -> Any:
    """``operand(shared)``: a tile that starts there as an operand of a product, made beforehand.

    Parameters
    ----------
    descriptor : int
        `SwizzledTile.by_rows` or `by_columns`.

    Notes
    -----
    What takes turns to multiply should not work out addresses while it has the turn.
    """

    def typing(typingctx, shared):
        def codegen(context, builder, signature, args):
            made = described_operand(context, builder, shared, args[0], descriptor)
            (kept,) = assembly(builder, "mov.b64 $0, $1;", [made], [I64])
            return kept

        return types.int64(shared), codegen

    return emulated_by(lambda shared: shared, follows=True)(typing)


@cache
def make_operands(descriptor: int, size: int = 0) -> tuple[Any, Any]:
    """Operations ``first(shared)`` and ``operand(first, number)``: tiles `size` bytes apart.

    ``operand(first(shared), n)`` is the n-th tile from where `shared` starts as an operand of a
    product; `descriptor` is as for `make_operand`.

    Notes
    -----
    Lane 0 tells its warp the first one. So one register for all lanes can hold it, and the compiler
    keeps it: otherwise it works out every address anew in each turn of a loop, ahead of the
    product that needs it.
    """
    low, high, apart = descriptor & 0xFFFFFFFF, descriptor >> 32 << 32, size // 16

    def typing_of_first(typingctx, shared):
        def codegen(context, builder, signature, args):
            address = shared_address(context, builder, shared, args[0])
            units = builder.and_(builder.lshr(address, I32(4)), I32(0x3FFF))
            own = builder.or_(units, I32(low))
            (told,) = assembly(builder, "shfl.sync.idx.b32 $0, $1, 0, 31, -1;", [own], [I32])
            return told

        return types.int32(shared), codegen

    def typing_of_number(typingctx, first, number):
        def codegen(context, builder, signature, args):
            which = context.cast(builder, args[1], number, types.int32)
            start = builder.add(args[0], builder.mul(which, I32(apart)))
            return builder.or_(builder.zext(start, I64), I64(high))

        return types.int64(first, number), codegen

    def tile(first, number):
        return first[number] if size else first

    first = emulated_by(lambda shared: shared, follows=True)(typing_of_first)
    return first, emulated_by(tile, follows=True)(typing_of_number)
