"""Helpers that build inline PTX over addresses and whole arrays of registers."""

from typing import Any

from ..numba_cuda import cgutils, ir, types
from ..ptx import F32, I32, I64, SHARED, emulated_by

_LETTERS = {I32: "r", I64: "l", F32: "f"}


def shared_address(context, builder, array_type, array, index_type=None, index=None):
    """32-bit shared-memory address of an array's first element, or of element `index`."""
    view = context.make_array(array_type)(context, builder, value=array)
    pointer = view.data
    if index is not None:
        at = context.cast(builder, index, index_type, types.intp)
        pointer = cgutils.get_item_pointer(
            context, builder, array_type, view, [at], wraparound=False
        )
    inside = builder.addrspacecast(pointer, ir.PointerType(pointer.type.pointee, SHARED))
    return builder.ptrtoint(inside, I32)


def register_pointers(context, builder, array_type, array, order) -> list:
    """Pointers to the elements `order` (flat numbers) of a local array."""
    data = context.make_array(array_type)(context, builder, value=array).data
    return [builder.gep(data, [ir.Constant(I32, i)], inbounds=True) for i in order]


def as_int32(context, builder, kind, value):
    """`value` as a 32-bit integer."""
    return context.cast(builder, value, kind, types.int32)


def assembly(builder, text: str, inputs, outputs=(), tied=()) -> list:
    """Call inline PTX that touches memory; ``$0, $1, ...`` are outputs, then inputs.

    Parameters
    ----------
    inputs : sequence of LLVM values
    outputs : sequence of LLVM types
    tied : sequence of LLVM values
        Read-write registers: output i starts as ``tied[i]``.

    Returns
    -------
    list of LLVM values
        The outputs.
    """
    constraints = ["=" + _LETTERS[kind] for kind in outputs]
    constraints += [_LETTERS[value.type] for value in inputs]
    constraints += [*map(str, range(len(tied))), "~{memory}"]
    operands = [*inputs, *tied]
    result = (
        ir.VoidType()
        if not outputs
        else outputs[0]
        if len(outputs) == 1
        else ir.LiteralStructType(outputs)
    )
    kind = ir.FunctionType(result, [value.type for value in operands])
    call = builder.call(ir.InlineAsm(kind, text, ",".join(constraints), side_effect=True), operands)
    call.attributes.add("convergent")
    if len(outputs) < 2:
        return [call] * len(outputs)
    return [builder.extract_value(call, i) for i in range(len(outputs))]


def described(typing, emulate, doc=None, traffic="", scope="thread", **hooks) -> Any:
    """A typing function as an intrinsic with its CPU twin, which is handed a context; see `ptx`."""
    operation = emulated_by(emulate, traffic, scope=scope, context=True, **hooks)(typing)
    operation.__doc__ = doc or typing.__doc__
    return operation


def operandless(text: str, emulate, doc: str) -> Any:
    """An instruction without operands or results as an intrinsic; see `described`."""

    def typing(typingctx):
        def codegen(context, builder, signature, args):
            assembly(builder, text, [])
            return context.get_dummy_value()

        return types.void(), codegen

    return described(typing, emulate, doc)
