"""Bulk copies of tensor tiles by the copy engine: ``cp.async.bulk.tensor`` (PTX ISA 9.0, 9.7.9.27).

One thread names a tile by its first element's coordinates, innermost first; the engine moves it,
swizzled as the `TensorMap` says. Rows and columns outside of the tensor are read as zeros, count in
the bytes that arrive all the same, and are not written; but a store must not begin before the
tensor does: a negative coordinate there is an illegal instruction.
"""

from typing import Any

from ..numba_cuda import types
from ..ptx import I64
from .assembly import as_int32, assembly, described, shared_address
from .emulation import copies


def _load(typingctx, to, source, c0, c1, c2, c3, bars, index):
    def codegen(context, builder, signature, args):
        kinds = signature.args
        target = shared_address(context, builder, kinds[0], args[0])
        coordinates = [as_int32(context, builder, kinds[i], args[i]) for i in range(2, 6)]
        barrier = shared_address(context, builder, kinds[6], args[6], kinds[7], args[7])
        text = (
            "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
            "[$0], [$1, {$2, $3, $4, $5}], [$6];"
        )
        assembly(builder, text, [target, args[1], *coordinates, barrier])
        return context.get_dummy_value()

    return types.void(to, source, c0, c1, c2, c3, bars, index), codegen


def _store(typingctx, source, c0, c1, c2, c3, tensor):
    def codegen(context, builder, signature, args):
        kinds = signature.args
        origin = shared_address(context, builder, kinds[0], args[0])
        coordinates = [as_int32(context, builder, kinds[i], args[i]) for i in range(1, 5)]
        text = (
            "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group "
            "[$0, {$2, $3, $4, $5}], [$1];"
        )
        assembly(builder, text, [args[5], origin, *coordinates])
        return context.get_dummy_value()

    return types.void(source, c0, c1, c2, c3, tensor), codegen


def _group(text, emulate, doc) -> Any:
    def typing(typingctx):
        def codegen(context, builder, signature, args):
            assembly(builder, text, [])
            return context.get_dummy_value()

        return types.void(), codegen

    return described(typing, emulate, doc)


def _address(typingctx, tensor_map):
    def codegen(context, builder, signature, args):
        return builder.ptrtoint(args[0], I64)

    return types.uint64(tensor_map), codegen


map_address = described(
    _address,
    copies.map_address,
    """The address of a `TensorMap` argument of a kernel, as rooms and copies take it.

    To be asked for in the kernel itself: handing the argument on would copy it.
    """,
    follows=True,
)
tensor_load = described(
    _load,
    copies.load,
    """``cp.async.bulk.tensor.4d.shared``: ``tensor_load(to, map, c0, c1, c2, c3, bars, i)``.

    Start a copy of the box at those coordinates to `to` in shared memory, aligned as
    `layouts.SwizzledTile.alignment` says. Barrier ``bars[i]`` counts the bytes of the whole box.
    """,
    "bulk",
)
tensor_store = described(
    _store,
    copies.store,
    """``cp.async.bulk.tensor.4d.global``: ``tensor_store(source, c0, c1, c2, c3, map)``.

    Start a copy of `source` in shared memory to the box; part of the thread's open bulk group.
    """,
    "bulk",
)
bulk_commit = _group(
    "cp.async.bulk.commit_group;",
    copies.commit,
    "``cp.async.bulk.commit_group``: close the thread's group of bulk stores.",
)
bulk_wait_read = _group(
    "cp.async.bulk.wait_group.read 0;",
    copies.wait_read,
    "``cp.async.bulk.wait_group.read``: until all groups have read their shared memory.",
)
