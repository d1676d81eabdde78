"""Sums in global memory that many blocks add to, and copies of plain rows of numbers."""

from ..numba_cuda import cgutils, ir, types
from ..ptx import GLOBAL, I64, emulated_by, pointer_to
from .assembly import assembly, described, shared_address
from .emulation import copies


def _global_address(context, builder, array, value, index_type, index):
    """64-bit address of an element in global memory."""
    pointer = pointer_to(context, builder, array, value, index_type, index)
    origin = builder.addrspacecast(pointer, ir.PointerType(pointer.type.pointee, GLOBAL))
    return builder.ptrtoint(origin, I64)


@emulated_by(lambda array, index, values: array.add_vector(index, values))
def add4_global(typingctx, array, index, values):
    """``red.global.add.v4.f32`` (PTX ISA 9.0, 9.7.13.8): four sums in global memory grow, cc 9.0.

    ``add4_global(array, index, values)``: float32 neighbours of the last axis from `index` on, on a
    16-byte boundary. Each addition is atomic and rounds to nearest; nothing comes back.
    """

    def codegen(context, builder, signature, args):
        address = _global_address(context, builder, array, args[0], index, args[1])
        given = cgutils.unpack_tuple(builder, args[2], 4)
        numbers = [
            context.cast(builder, value, kind, types.float32)
            for value, kind in zip(given, values, strict=True)
        ]
        assembly(builder, "red.global.add.v4.f32 [$0], {$1, $2, $3, $4};", [address, *numbers])
        return context.get_dummy_value()

    return types.void(array, index, values), codegen


add4_global.flops = {"add": 4}


def _store_pair(array, index, word, valid):
    if valid:
        array.store_vector(index, (int(word) & 0xFFFF, int(word) >> 16))


@emulated_by(_store_pair)
def store_pair_global(typingctx, array, index, word, valid):
    """``st.global.b32`` (PTX ISA 9.0, 9.7.9.11): two 16-bit neighbours of the last axis at once.

    ``store_pair_global(array, index, word, valid)``: bits 0 to 15 of `word` go to `index`, the
    others to the next, on a 4-byte boundary; nothing happens unless `valid` (a predicate, no
    branch).
    """

    def codegen(context, builder, signature, args):
        address = _global_address(context, builder, array, args[0], index, args[1])
        number = context.cast(builder, args[2], word, types.uint32)
        given = context.cast(builder, args[3], valid, types.int32)
        text = "{ .reg .pred valid; setp.ne.s32 valid, $2, 0; @valid st.global.b32 [$0], $1; }"
        assembly(builder, text, [address, number, given])
        return context.get_dummy_value()

    return types.void(array, index, word, valid), codegen


store_pair_global.values = (2,)


def _bulk_load(typingctx, to, source, at, count, bars, index):
    def codegen(context, builder, signature, args):
        kinds = signature.args
        target = shared_address(context, builder, kinds[0], args[0])
        origin = _global_address(context, builder, kinds[1], args[1], kinds[2], args[2])
        number = context.cast(builder, args[3], kinds[3], types.int32)
        size = builder.mul(number, number.type(4))
        barrier = shared_address(context, builder, kinds[4], args[4], kinds[5], args[5])
        text = (
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
            "[$0], [$1], $2, [$3];"
        )
        assembly(builder, text, [target, origin, size, barrier])
        return context.get_dummy_value()

    return types.void(to, source, at, count, bars, index), codegen


bulk_load = described(
    _bulk_load,
    copies.bulk_load,
    """``cp.async.bulk.shared`` (9.7.9.25.4.1): ``bulk_load(to, source, at, count, bars, i)``.

    Start a copy of `count` float32, a multiple of 4, from index `at` of `source` on, to `to` in
    shared memory; both on 16-byte boundaries. Barrier ``bars[i]`` counts the bytes.
    """,
    "bulk",
)
