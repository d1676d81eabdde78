"""Arrays of 16-bit elements read and written in 32-bit words, as tensor-core operands are held.

A word is two neighbours of the last axis, the first in the lower half, or one number of 32 bits.
These are inline PTX, which the compiler does not reorder with other accesses of the same memory (it
may take accesses through pointers of two types for accesses of two arrays).
"""

from typing import Any

from .numba_cuda import cgutils, ir, types
from .ptx import GLOBAL, I32, I64, SHARED, assembly, emulated_by, pointer_to


def _address(context, builder, array, args, index, space):
    pointer = pointer_to(context, builder, array, args[0], index, args[1])
    pointer = builder.addrspacecast(pointer, ir.PointerType(pointer.type.pointee, space))
    return builder.ptrtoint(pointer, I32 if space == SHARED else I64)


def _load(name, space, count, doc) -> Any:
    where, letter = ("shared", "r") if space == SHARED else ("global", "l")
    vector = ".v4" if count == 4 else ""
    names = ", ".join(f"${i}" for i in range(count))
    text = f"ld.{where}{vector}.b32 {{{names}}}, [${count}];"
    constraints = ",".join(["=r"] * count + [letter, "~{memory}"])

    def emulate(array, index):
        if array.itemsize == 4:
            return array.load_vector(index, count)
        parts = [int(x) for x in array.load_vector(index, 2 * count)]
        return tuple(parts[i] | parts[i + 1] << 16 for i in range(0, 2 * count, 2))

    def typing(typingctx, array, index):
        def codegen(context, builder, signature, args):
            operands = [_address(context, builder, array, args, index, space)]
            result = ir.LiteralStructType([I32] * count)
            loaded = assembly(builder, text, constraints, operands, result, side_effect=True)
            return cgutils.pack_array(builder, cgutils.unpack_tuple(builder, loaded, count))

        return types.UniTuple(types.uint32, count)(array, index), codegen

    typing.__name__ = name
    operation = emulated_by(emulate)(typing)
    operation.__doc__ = doc
    return operation


def _store(name, space, count, doc) -> Any:
    where, letter = ("shared", "r") if space == SHARED else ("global", "l")
    vector = ".v4" if count == 4 else ""
    names = ", ".join(f"${i + 1}" for i in range(count))
    values = f"{{{names}}}" if count > 1 else names
    text = f"st.{where}{vector}.b32 [$0], {values};"
    constraints = ",".join([letter] + ["r"] * count + ["~{memory}"])

    def emulate(array, index, words):
        words = words if count > 1 else (words,)
        if array.itemsize == 4:
            array.store_vector(index, words)
            return
        halves = [half for word in words for half in (int(word) & 0xFFFF, int(word) >> 16)]
        array.store_vector(index, tuple(halves))

    def typing(typingctx, array, index, words):
        def codegen(context, builder, signature, args):
            kinds = words if count > 1 else (words,)
            parts = cgutils.unpack_tuple(builder, args[2], count) if count > 1 else (args[2],)
            operands = [_address(context, builder, array, args, index, space)]
            operands += [
                context.cast(builder, part, kind, types.uint32)
                for part, kind in zip(parts, kinds, strict=True)
            ]
            assembly(builder, text, constraints, operands, ir.VoidType(), side_effect=True)
            return context.get_dummy_value()

        return types.void(array, index, words), codegen

    typing.__name__ = name
    operation = emulated_by(emulate, values=(2,))(typing)
    operation.__doc__ = doc
    return operation


load_words4 = _load(
    "load_words4",
    SHARED,
    4,
    "``ld.shared.v4.b32`` (9.7.9.8): ``load_words4(array, index)``, 8 elements as 4 words.",
)
store_word = _store(
    "store_word",
    SHARED,
    1,
    "``st.shared.b32`` (9.7.9.11): ``store_word(array, index, word)``, 2 elements.",
)
store_word_global = _store(
    "store_word_global",
    GLOBAL,
    1,
    "``st.global.b32`` (9.7.9.11): ``store_word_global(array, index, word)``, 2 elements.",
)
store_words4_global = _store(
    "store_words4_global",
    GLOBAL,
    4,
    "``st.global.v4.b32`` (9.7.9.11): ``store_words4_global(array, index, words)``, 8 elements.",
)
load_words4_global = _load(
    "load_words4_global",
    GLOBAL,
    4,
    "``ld.global.v4.b32`` (9.7.9.8): ``load_words4_global(array, index)``, 8 elements as 4 words.",
)
store_words4 = _store(
    "store_words4",
    SHARED,
    4,
    "``st.shared.v4.b32`` (9.7.9.11): ``store_words4(array, index, words)``, 8 elements.",
)
