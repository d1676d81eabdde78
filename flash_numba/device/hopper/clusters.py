"""Clusters: neighbouring blocks that run at once and reach each other's shared memory (cc 9.0).

``launch(..., cluster=n)`` makes n neighbouring blocks a cluster. Before a block touches another
one's shared memory, and before it ends while others may touch its own, all meet: `cluster_arrive`,
then `cluster_wait`. Section numbers are those of NVIDIA's PTX ISA 9.0.
"""

from typing import Any

from ..numba_cuda import types
from ..ptx import I32, I64
from .assembly import as_int32, assembly, described, operandless, shared_address
from .emulation import clusters


def _number(text, emulate, doc) -> Any:
    def typing(typingctx):
        def codegen(context, builder, signature, args):
            return assembly(builder, text, [], [I32])[0]

        return types.int32(), codegen

    return described(typing, emulate, doc)


cluster_rank = _number(
    "mov.u32 $0, %cluster_ctarank;",
    clusters.rank,
    "``%cluster_ctarank`` (10.25): number of this block within its cluster.",
)
cluster_size = _number(
    "mov.u32 $0, %cluster_nctarank;",
    clusters.size,
    "``%cluster_nctarank`` (10.26): blocks of this block's cluster.",
)
cluster_arrive = operandless(
    "barrier.cluster.arrive.release.aligned;",
    clusters.arrive_cluster,
    "``barrier.cluster.arrive`` (9.7.13.4): this thread came to the cluster's barrier; it goes on.",
)
cluster_wait = operandless(
    "barrier.cluster.wait.acquire.aligned;",
    clusters.wait_cluster,
    "``barrier.cluster.wait`` (9.7.13.4): until all threads of the cluster came.",
)


def _shared_of(typingctx, array, number):
    def codegen(context, builder, signature, args):
        there = context.make_array(array)(context, builder, value=args[0])
        rank = as_int32(context, builder, number, args[1])
        address = builder.ptrtoint(there.data, I64)
        (found,) = assembly(builder, "mapa.u64 $0, $1, $2;", [address, rank], [I64])
        there.data = builder.inttoptr(found, there.data.type)
        return there._getvalue()

    return array(array, number), codegen


shared_of = described(
    _shared_of,
    clusters.shared_of,
    """``mapa`` (9.7.9.24): ``shared_of(array, rank)``, the same array of another block.

    `array` lies in shared memory; what is given is read, written and updated like it.
    """,
)


def _arrive_at(typingctx, bars, index, number):
    def codegen(context, builder, signature, args):
        where = shared_address(context, builder, bars, args[0], index, args[1])
        rank = as_int32(context, builder, number, args[2])
        text = (
            "{ .reg .b32 there; mapa.shared::cluster.u32 there, $0, $1; "
            "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there]; }"
        )
        assembly(builder, text, [where, rank])
        return context.get_dummy_value()

    return types.void(bars, index, number), codegen


barrier_arrive_at = described(
    _arrive_at,
    clusters.arrive_at,
    """``mbarrier.arrive.shared::cluster`` (9.7.13.15.13): ``barrier_arrive_at(bars, i, rank)``.

    One arrival at the barrier of another block.
    """,
)


def _multicast(typingctx, to, source, c0, c1, c2, c3, bars, index, mask):
    def codegen(context, builder, signature, args):
        kinds = signature.args
        target = shared_address(context, builder, kinds[0], args[0])
        coordinates = [as_int32(context, builder, kinds[i], args[i]) for i in range(2, 6)]
        barrier = shared_address(context, builder, kinds[6], args[6], kinds[7], args[7])
        blocks = as_int32(context, builder, kinds[8], args[8])
        text = (
            "{ .reg .b16 mask; cvt.u16.u32 mask, $7; "
            "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
            ".multicast::cluster [$0], [$1, {$2, $3, $4, $5}], [$6], mask; }"
        )
        assembly(builder, text, [target, args[1], *coordinates, barrier, blocks])
        return context.get_dummy_value()

    return types.void(to, source, c0, c1, c2, c3, bars, index, mask), codegen


tensor_load_multicast = described(
    _multicast,
    clusters.load_multicast,
    """``tensor_load`` to several blocks (9.7.9.27.1.2): a last operand names them, a bit each.

    The box comes to the same place in each of their shared memories, and its bytes count at the
    same barrier of each: L2 is read once for all.
    """,
    "bulk",
)
