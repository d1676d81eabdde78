"""PTX instructions that Numba lacks: one intrinsic an instruction, its CPU twin beside it.

`intrinsic.emulate` is what the thread runner calls instead: the same operands, on NumPy arrays and
scalars. Section numbers are those of NVIDIA's PTX ISA 9.0.
"""

from typing import Any

import numpy as np

from .numba_cuda import cgutils, intrinsic, ir, types

F16, F32 = ir.HalfType(), ir.FloatType()
I16, I32, I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
SHARED, GLOBAL = 3, 1


def emulated_by(emulate, traffic: str = "", **hooks) -> Any:
    """Decorator: a typing function as an intrinsic with its CPU twin `emulate`.

    `simulator.threads` says what `traffic` and the other `hooks` (`scope`, `fetch`, `put`,
    `context`, `values`, `follows`, `flops`, `instructions`) mean. No address
    here depends on what an instruction reads, so that `values` holds none unless given.
    """

    def decorate(typing):
        operation = intrinsic(typing)
        operation.emulate, operation.traffic, operation.values = emulate, traffic, ()
        vars(operation).update(hooks)
        operation.__doc__ = typing.__doc__
        return operation

    return decorate


def assembly(builder, text, constraints, args, result, side_effect=False) -> Any:
    """Call inline PTX; ``$0`` in `text` is the result, or the first operand if there is none."""
    kind = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(ir.InlineAsm(kind, text, constraints, side_effect=side_effect), args)


def pointer_to(context, builder, array_type, array, index_type, index):
    """Address of ``array[index]``, neighbours in the last axis taken to be neighbours in memory."""
    array = context.make_array(array_type)(context, builder, value=array)
    if isinstance(index_type, types.BaseTuple):
        given = zip(cgutils.unpack_tuple(builder, index), index_type, strict=True)
    else:
        given = [(index, index_type)]
    parts = [context.cast(builder, part, kind, types.intp) for part, kind in given]
    last = parts[-1]
    parts[-1] = I64(0)
    row = cgutils.get_item_pointer(context, builder, array_type, array, parts, wraparound=False)
    return builder.gep(row, [last])


def _vector_of(array_type):
    """LLVM type of four neighbouring elements, and their bytes."""
    if array_type.dtype == types.uint16:
        return ir.VectorType(I16, 4), 8
    return ir.VectorType(F32, 4), 16


def _load4(array, index):
    return array.load_vector(index, 4)


def _store4(array, index, values):
    array.store_vector(index, values)


def _in_space(builder, pointer, kind, space):
    """`pointer` as one to `kind` in address space `space`."""
    return builder.addrspacecast(
        builder.bitcast(pointer, kind.as_pointer()), ir.PointerType(kind, space)
    )


def _vector_load(space, doc) -> Any:
    def typing(typingctx, array, index):
        def codegen(context, builder, signature, args):
            pointer = pointer_to(context, builder, array, args[0], index, args[1])
            vector, size = _vector_of(array)
            if size == 8:  # as one number: the compiler takes a vector of 16-bit numbers apart
                loaded = builder.load(_in_space(builder, pointer, I64, space), align=size)
                parts = [builder.trunc(builder.lshr(loaded, I64(16 * i)), I16) for i in range(4)]
                return cgutils.pack_array(builder, parts)
            loaded = builder.load(_in_space(builder, pointer, vector, space), align=size)
            parts = [builder.extract_element(loaded, I32(i)) for i in range(4)]
            return cgutils.pack_array(builder, parts)

        return types.UniTuple(array.dtype, 4)(array, index), codegen

    operation = emulated_by(_load4)(typing)
    operation.__doc__ = doc
    return operation


def _vector_store(space, doc) -> Any:
    def typing(typingctx, array, index, values):
        def codegen(context, builder, signature, args):
            pointer = pointer_to(context, builder, array, args[0], index, args[1])
            vector, size = _vector_of(array)
            packed = ir.Constant(vector, ir.Undefined)
            for i, value in enumerate(cgutils.unpack_tuple(builder, args[2], 4)):
                packed = builder.insert_element(packed, value, I32(i))
            builder.store(packed, _in_space(builder, pointer, vector, space), align=size)
            return context.get_dummy_value()

        return types.void(array, index, types.UniTuple(array.dtype, 4)), codegen

    operation = emulated_by(_store4, values=(2,))(typing)
    operation.__doc__ = doc
    return operation


load4 = _vector_load(
    SHARED,
    """``ld.shared.v4.f32`` (9.7.9.8): ``load4(array, index)``, four neighbours as a tuple.

    16 bytes of the last axis from `index` on, on a 16-byte boundary.
    """,
)
store4 = _vector_store(
    SHARED, "``st.shared.v4.f32`` (9.7.9.11): ``store4(array, index, values)``; see `load4`."
)
load4_global = _vector_load(
    GLOBAL,
    """``ld.global.v4`` (9.7.9.8): as `load4`, from global memory; 8 bytes of 16-bit elements.""",
)
store4_global = _vector_store(GLOBAL, "``st.global.v4`` (9.7.9.11): see `load4_global`.")


@emulated_by(lambda array, index: array.load_vector(index, 2))
def load2(typingctx, array, index):
    """``ld.shared.v2.f32`` (9.7.9.8): ``load2(array, index)``, two neighbours; see `load4`."""

    def codegen(context, builder, signature, args):
        pointer = pointer_to(context, builder, array, args[0], index, args[1])
        pointer = builder.addrspacecast(pointer, ir.PointerType(pointer.type.pointee, SHARED))
        two = ir.LiteralStructType([F32] * 2)
        operands = [builder.ptrtoint(pointer, I32)]
        text, constraints = "ld.shared.v2.f32 {$0, $1}, [$2];", "=f,=f,r,~{memory}"
        loaded = assembly(builder, text, constraints, operands, two, side_effect=True)
        return cgutils.pack_array(builder, cgutils.unpack_tuple(builder, loaded, 2))

    return types.UniTuple(types.float32, 2)(array, index), codegen


def _unary(name, text, emulate, doc) -> Any:
    def typing(typingctx, x):
        def codegen(context, builder, signature, args):
            x32 = context.cast(builder, args[0], x, types.float32)
            return assembly(builder, text, "=f,f", [x32], F32)

        return types.float32(x), codegen

    operation = emulated_by(emulate, values=(0,), flops={name: 1})(typing)
    operation.__doc__ = doc
    return operation


exp2 = _unary(
    "exp2",
    "ex2.approx.ftz.f32 $0, $1;",
    lambda x: np.exp2(np.float32(x)),
    "``ex2.approx.ftz.f32`` (9.7.3.21): 2 to the power `x`, relative error 2**-22.",
)


log2 = _unary(
    "log2",
    "lg2.approx.ftz.f32 $0, $1;",
    lambda x: np.log2(np.float32(x)),
    "``lg2.approx.ftz.f32`` (9.7.3.20): log to base 2, off by 2**-22 - relative outside (1/2, 2).",
)
reciprocal = _unary(
    "reciprocal",
    "rcp.approx.ftz.f32 $0, $1;",
    lambda x: np.float32(1) / np.float32(x),
    "``rcp.approx.ftz.f32`` (9.7.3.14): ``1 / x``, off by one unit in the last place at most.",
)


def _larger(x, y):
    x, y = np.float32(x), np.float32(y)
    if x == 0 and y == 0:
        return x + y
    return np.fmax(x, y)


@emulated_by(_larger)
def larger(typingctx, x, y):
    """``max.f32`` (9.7.3.12): the larger of two float32; a NaN loses to a number, -0 to +0."""

    def codegen(context, builder, signature, args):
        operands = [
            context.cast(builder, args[i], signature.args[i], types.float32) for i in (0, 1)
        ]
        return assembly(builder, "max.f32 $0, $1, $2;", "=f,f,f", operands, F32)

    return types.float32(x, y), codegen


larger.flops = {}


@emulated_by(lambda x, y: np.float32(x) * np.float32(y))
def rounded_product(typingctx, x, y):
    """``mul.rn.f32`` (9.7.3.5): ``x * y`` rounded, never fused with an addition that follows."""

    def codegen(context, builder, signature, args):
        operands = [
            context.cast(builder, args[i], signature.args[i], types.float32) for i in (0, 1)
        ]
        return assembly(builder, "mul.rn.f32 $0, $1, $2;", "=f,f,f", operands, F32)

    return types.float32(x, y), codegen


rounded_product.flops = {"mul": 1}


@emulated_by(lambda x: x)
def recomputed(typingctx, x):
    """``mov.u32`` (9.7.9.3): `x`, but the optimiser does not see that it is the same.

    What is computed from the result is computed where it stands, and not once before a loop, in
    registers that the loop then lacks.
    """

    def codegen(context, builder, signature, args):
        number = context.cast(builder, args[0], x, types.uint32)
        return assembly(builder, "mov.u32 $0, $1;", "=r,r", [number], I32, side_effect=True)

    return types.uint32(x), codegen


recomputed.follows = True


def _convert(doc, source, target, emulate, codegen) -> Any:
    def typing(typingctx, x):
        def build(context, builder, signature, args):
            return codegen(builder, context.cast(builder, args[0], x, source))

        return target(x), build

    operation = emulated_by(emulate)(typing)
    operation.__doc__ = doc
    return operation


float_from_half = _convert(
    "``cvt.f32.f16`` (9.7.9.22): the float32 of the 16 bits of an fp16 number.",
    types.uint16,
    types.float32,
    lambda x: np.float32(np.uint16(x).view(np.float16)),
    lambda builder, x: builder.fpext(builder.bitcast(x, F16), F32),
)
half_from_float = _convert(
    "``cvt.rn.f16.f32`` (9.7.9.22): the 16 bits of a float32 rounded to fp16.",
    types.float32,
    types.uint16,
    lambda x: np.float32(x).astype(np.float16).view(np.uint16),
    lambda builder, x: assembly(builder, "cvt.rn.f16.f32 $0, $1;", "=h,f", [x], I16),
)
float_from_bits = _convert(
    "``mov.b32`` (9.7.9.3): the float32 that has these 32 bits.",
    types.uint32,
    types.float32,
    lambda x: np.uint32(x).view(np.float32),
    lambda builder, x: builder.bitcast(x, F32),
)
bits_from_float = _convert(
    "``mov.b32`` (9.7.9.3): the 32 bits of a float32.",
    types.float32,
    types.uint32,
    lambda x: np.float32(x).view(np.uint32),
    lambda builder, x: builder.bitcast(x, I32),
)


def _shared_tile(memory, start, shape):
    count = int(np.prod(shape))
    return memory[start : start + count].reshape(shape)


@emulated_by(_shared_tile)
def shared_tile(typingctx, memory, start, shape):
    """A C-ordered array of `shape` inside a block's dynamic shared memory (no instruction).

    Parameters
    ----------
    memory : 1-D array
        ``cuda.shared.array(0, dtype)``.
    start : int
        Its first element.
    shape : tuple of constant ints
    """
    result = types.Array(memory.dtype, len(shape), "C")

    def codegen(context, builder, signature, args):
        base = context.make_array(memory)(context, builder, value=args[0])
        start_at = context.cast(builder, args[1], start, types.intp)
        sizes = [
            context.cast(builder, size, kind, types.intp)
            for size, kind in zip(
                cgutils.unpack_tuple(builder, args[2], len(shape)), shape, strict=True
            )
        ]
        itemsize = context.get_abi_sizeof(context.get_data_type(memory.dtype))
        strides, stride = [], I64(itemsize)
        for size in reversed(sizes):
            strides.insert(0, stride)
            stride = builder.mul(stride, size)
        tile = context.make_array(result)(context, builder)
        context.populate_array(
            tile,
            data=builder.gep(base.data, [start_at]),
            shape=cgutils.pack_array(builder, sizes),
            strides=cgutils.pack_array(builder, strides),
            itemsize=I64(itemsize),
            meminfo=None,
        )
        return tile._getvalue()

    return result(memory, start, shape), codegen


shared_tile.follows = True


def _element(context, builder, array, args, index):
    """64-bit address of an element of an array in global memory."""
    pointer = pointer_to(context, builder, array, args[0], index, args[1])
    origin = builder.addrspacecast(pointer, ir.PointerType(pointer.type.pointee, GLOBAL))
    return builder.ptrtoint(origin, I64)


@emulated_by(lambda array, index: array[index])
def load_uncached(typingctx, array, index):
    """``ld.global.cg.f32`` (9.7.9.1): an element from L2, which other blocks may have written."""

    def codegen(context, builder, signature, args):
        address = _element(context, builder, array, args, index)
        text = "ld.global.cg.f32 $0, [$1];"
        return assembly(builder, text, "=f,l,~{memory}", [address], F32, side_effect=True)

    return types.float32(array, index), codegen


@emulated_by(_load4)
def load4_uncached(typingctx, array, index):
    """``ld.global.cg.v4.f32`` (9.7.9.1): as `load_uncached`, four neighbours; see `load4`."""

    def codegen(context, builder, signature, args):
        address = _element(context, builder, array, args, index)
        text = "ld.global.cg.v4.f32 {$0, $1, $2, $3}, [$4];"
        four = ir.LiteralStructType([F32] * 4)
        constraints = "=f,=f,=f,=f,l,~{memory}"
        loaded = assembly(builder, text, constraints, [address], four, side_effect=True)
        return cgutils.pack_array(builder, cgutils.unpack_tuple(builder, loaded, 4))

    return types.UniTuple(types.float32, 4)(array, index), codegen


@emulated_by(lambda array, index: int(array[index]), traffic="acquire")
def load_acquire(typingctx, array, index):
    """``ld.acquire.gpu.global.s32`` (9.7.9.8): what the writer wrote before is visible after it."""

    def codegen(context, builder, signature, args):
        address = _element(context, builder, array, args, index)
        text = "ld.acquire.gpu.global.s32 $0, [$1];"
        return assembly(builder, text, "=r,l,~{memory}", [address], I32, side_effect=True)

    return types.int32(array, index), codegen


@emulated_by(lambda array, index, value: array.__setitem__(index, value), traffic="release")
def store_release(typingctx, array, index, value):
    """``st.release.gpu.global.s32`` (9.7.9.11): all writes before it are visible with it."""

    def codegen(context, builder, signature, args):
        address = _element(context, builder, array, args, index)
        number = context.cast(builder, args[2], value, types.int32)
        text = "st.release.gpu.global.s32 [$0], $1;"
        operands = [address, number]
        assembly(builder, text, "l,r,~{memory}", operands, ir.VoidType(), side_effect=True)
        return context.get_dummy_value()

    return types.void(array, index, value), codegen
