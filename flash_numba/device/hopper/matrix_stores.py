"""Fragments to shared memory, whole 8 x 8 matrices at a time: ``stmatrix`` (PTX ISA, 9.7.14.5.16).

A lane holds two neighbours of a row of each matrix, as in the sums of a product; the instruction
hands them around so that eight lanes write eight whole rows of 16 bytes.
"""

import numpy as np

from ..numba_cuda import cgutils, ir, types
from ..ptx import I32, SHARED, emulated_by, pointer_to
from ..ptx_matrix import GROUP, PAIR
from .assembly import assembly


def _fetch(context, shared, at, words):
    return tuple(words)


def _rows(context, words):
    """For each lane the row that it says the place of."""
    stored = np.array(words, np.uint32)  # lane, matrix
    matrices = np.empty((4, 8, 8), np.uint16)
    matrices[:, PAIR, GROUP] = (stored & 0xFFFF).T
    matrices[:, PAIR + 1, GROUP] = (stored >> 16).T
    return [tuple(row) for row in matrices.reshape(32, 8).tolist()]


def _put(context, row, shared, at, words):
    shared.store_vector(at, row)


@emulated_by(_rows, "stmatrix", scope="warp", fetch=_fetch, put=_put, context=True)
def stmatrix_x4_trans(typingctx, shared, at, words):
    """``stmatrix.m8n8.x4.trans.b16``: store four matrices of 16-bit elements, transposed; cc 9.0.

    ``stmatrix_x4_trans(shared, at, words)``: register i of a lane holds columns 2t and 2t+1 of row
    g of matrix i (g = lane // 4, t = lane % 4). Lane 8 i + r says where *column* r of matrix i
    goes: eight neighbours of `shared` (16-bit elements) from index `at` on, on a 16-byte boundary.
    """

    def codegen(context, builder, signature, args):
        pointer = pointer_to(context, builder, shared, args[0], at, args[1])
        pointer = builder.addrspacecast(pointer, ir.PointerType(pointer.type.pointee, SHARED))
        given = cgutils.unpack_tuple(builder, args[2], 4)
        registers = [
            context.cast(builder, word, kind, types.uint32)
            for word, kind in zip(given, words, strict=True)
        ]
        text = "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [$0], {$1, $2, $3, $4};"
        assembly(builder, text, [builder.ptrtoint(pointer, I32), *registers])
        return context.get_dummy_value()

    return types.void(shared, at, words), codegen


stmatrix_x4_trans.values = (2,)
