"""Tensor-core instructions: a warp multiplies small matrices that its lanes hold together.

A *fragment* is one lane's part of a matrix. Two 16-bit elements share a 32-bit register, the one of
the lower column (A) or row (B) in the lower half. With ``g = lane // 4`` and ``t = lane % 4``::

    A (16 x 16)       columns 2t, 2t+1   2t+8, 2t+9     C, D (16 x 8)     columns 2t, 2t+1
        row g             a[0]              a[2]            row g             c[0], c[1]
        row g + 8         a[1]              a[3]            row g + 8         c[2], c[3]

    B (16 x 8)        column g           (A of 16 x 8 is a[0], a[1]; B of 8 x 8 is b[0])
        rows 2t, 2t+1     b[0]
        rows 2t+8, 2t+9   b[1]

What makes chains of products cheap: the C fragments of two neighbouring 16 x 8 tiles, packed to 16
bits, are the A fragment of the next product. No lane needs what another one holds.

Section numbers are those of NVIDIA's PTX ISA 9.0.
"""

from typing import Any

import numpy as np

from ..problem import DTYPES
from .numba_cuda import cgutils, ir, types
from .ptx import F32, I32, SHARED, assembly, emulated_by, pointer_to

LANE = np.arange(32)
GROUP, PAIR = LANE // 4, 2 * (LANE % 4)


def matrix_of_a(words, dtype: str) -> np.ndarray:
    """A, float64 of shape (16, 4 n), from the lanes' n registers: uint32 of shape (32, n)."""
    halves = _halves(words, dtype)
    matrix = np.empty((16, 4 * halves.shape[1]))
    for i, e in np.ndindex(halves.shape[1:]):
        matrix[GROUP + 8 * (i % 2), PAIR + 8 * (i // 2) + e] = halves[:, i, e]
    return matrix


def matrix_of_b(words, dtype: str) -> np.ndarray:
    """B, float64 of shape (8 n, 8), from the lanes' n registers."""
    halves = _halves(words, dtype)
    matrix = np.empty((8 * halves.shape[1], 8))
    for i, e in np.ndindex(halves.shape[1:]):
        matrix[PAIR + 8 * i + e, GROUP] = halves[:, i, e]
    return matrix


def matrix_of_c(values) -> np.ndarray:
    """C, of shape (16, 8), from the lanes' four float32: shape (32, 4)."""
    matrix = np.empty((16, 8), np.float32)
    for e in range(4):
        matrix[GROUP + 8 * (e // 2), PAIR + e % 2] = values[:, e]
    return matrix


def _halves(words, dtype):
    """The 16-bit numbers in registers: float64 of shape (32, n, 2)."""
    stored = np.ascontiguousarray(words, np.uint32)
    return stored.view(DTYPES[dtype]).reshape(*stored.shape, 2).astype(np.float64)


def _mma(name, shape, dtype, doc) -> Any:
    """An intrinsic for one ``mma.sync``; `shape` is its name in PTX."""
    a_count, b_count = (4, 2) if shape == "m16n8k16" else (2, 1)
    kind = {"fp16": "f16", "bf16": "bf16"}[dtype]
    inputs = [f"${4 + i}" for i in range(a_count + b_count)]
    parts = (
        "{$0, $1, $2, $3}",
        "{" + ", ".join(inputs[:a_count]) + "}",
        "{" + ", ".join(inputs[a_count:]) + "}",
        "{" + ", ".join(f"${4 + len(inputs) + i}" for i in range(4)) + "}",
    )
    text = f"mma.sync.aligned.{shape}.row.col.f32.{kind}.{kind}.f32 {', '.join(parts)};"
    constraints = ",".join(["=f"] * 4 + ["r"] * len(inputs) + ["f"] * 4)

    def emulate(a, b, c):
        product = matrix_of_a(a, dtype) @ matrix_of_b(b, dtype)
        total = (product + matrix_of_c(np.array(c, np.float32))).astype(np.float32)
        fragment = [total[GROUP + 8 * (e // 2), PAIR + e % 2] for e in range(4)]
        return list(zip(*fragment, strict=True))

    def typing(typingctx, a, b, c):
        def codegen(context, builder, signature, args):
            operands = [
                context.cast(builder, part, have, want)
                for given, value, want in zip(
                    (a, b, c), args, (types.uint32, types.uint32, types.float32), strict=True
                )
                for have, part in zip(given, cgutils.unpack_tuple(builder, value), strict=True)
            ]
            four = ir.LiteralStructType([F32] * 4)
            # Kept in the order of the source: ptxas schedules it, NVVM should not.
            result = assembly(builder, text, constraints, operands, four, side_effect=True)
            return cgutils.pack_array(builder, cgutils.unpack_tuple(builder, result, 4))

        return types.UniTuple(types.float32, 4)(a, b, c), codegen

    typing.__name__ = name
    flops = {"matmul": 2 * 16 * 8 * (16 if shape == "m16n8k16" else 8)}
    operation = emulated_by(emulate, scope="warp", values=(0, 1, 2), flops=flops)(typing)
    operation.__doc__ = doc
    return operation


mma_m16n8k16_fp16 = _mma(
    "mma_m16n8k16_fp16",
    "m16n8k16",
    "fp16",
    """``mma.sync.m16n8k16.f32.f16`` (9.7.14.5.14): ``d = A @ B + c``, needs cc 8.0.

    ``mma_m16n8k16_fp16(a, b, c) -> d``: `a` four and `b` two uint32, `c` and `d` four float32, as
    drawn at the top (9.7.14.5.8). Products are exact; the order and rounding of the 17 additions is
    the hardware's own. The emulation adds in float64 and rounds once.
    """,
)
mma_m16n8k16_bf16 = _mma(
    "mma_m16n8k16_bf16",
    "m16n8k16",
    "bf16",
    "``mma.sync.m16n8k16.f32.bf16`` (9.7.14.5.14): see `mma_m16n8k16_fp16`.",
)
mma_m16n8k8_fp16 = _mma(
    "mma_m16n8k8_fp16",
    "m16n8k8",
    "fp16",
    """``mma.sync.m16n8k8.f32.f16`` (9.7.14.5.14), cc 7.5: half as deep as `mma_m16n8k16_fp16`.

    `a` two and `b` one uint32: the left half of A, the upper half of B (9.7.14.5.7).
    """,
)


def _ldmatrix(count, transposed, doc) -> Any:
    """An intrinsic for ``ldmatrix`` of `count` matrices."""
    name = f"ldmatrix_x{count}" + "_trans" * transposed
    trans = ".trans" * transposed
    registers = ", ".join(f"${i}" for i in range(count))
    text = f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{registers}}}, [${count}];"
    constraints = ",".join(["=r"] * count + ["r", "~{memory}"])

    def fetch(context, shared, at):
        return shared.load_vector(at, 8) if context.thread.lane < 8 * count else (0,) * 8

    def emulate(context, rows):
        matrices = np.array(rows[: 8 * count], np.uint32).reshape(count, 8, 8)
        if transposed:
            matrices = matrices.transpose(0, 2, 1)
        words = matrices[:, GROUP, PAIR] | matrices[:, GROUP, PAIR + 1] << 16
        return [tuple(lane) for lane in words.T.tolist()]

    def typing(typingctx, shared, at):
        def codegen(context, builder, signature, args):
            pointer = pointer_to(context, builder, shared, args[0], at, args[1])
            pointer = builder.addrspacecast(pointer, ir.PointerType(pointer.type.pointee, SHARED))
            result: Any = I32 if count == 1 else ir.LiteralStructType([I32] * count)
            operands = [builder.ptrtoint(pointer, I32)]
            loaded = assembly(builder, text, constraints, operands, result, side_effect=True)
            parts = [loaded] if count == 1 else cgutils.unpack_tuple(builder, loaded, count)
            return cgutils.pack_array(builder, parts)

        return types.UniTuple(types.uint32, count)(shared, at), codegen

    typing.__name__ = name
    hooks = {"scope": "warp", "fetch": fetch, "context": True}
    operation = emulated_by(emulate, "ldmatrix", **hooks)(typing)
    operation.__doc__ = doc
    return operation


ldmatrix_x4 = _ldmatrix(
    4,
    False,
    """``ldmatrix.m8n8.x4.b16`` (9.7.14.5.15): four 8 x 8 matrices of 16-bit elements, cc 7.5.

    ``ldmatrix_x4(shared, at) -> four uint32``. Lane 8 i + r says where row r of matrix i is: eight
    neighbours of `shared` (16-bit elements in shared memory) from index `at` on, on a 16-byte
    boundary. Register i of a lane then holds columns 2t and 2t+1 of row g of matrix i: a fragment
    as at the top, if the matrices are the 8 x 8 quarters of A in the order of a[0] to a[3].
    """,
)
ldmatrix_x2 = _ldmatrix(
    2, False, "``ldmatrix.m8n8.x2.b16``: two matrices, rows from lanes 0 to 15; see `ldmatrix_x4`."
)
ldmatrix_x1 = _ldmatrix(
    1, False, "``ldmatrix.m8n8.x1.b16``: one matrix, rows from lanes 0 to 7; see `ldmatrix_x4`."
)
ldmatrix_x4_trans = _ldmatrix(
    4,
    True,
    """``ldmatrix.m8n8.x4.trans.b16`` (9.7.14.5.15): as `ldmatrix_x4`, each matrix transposed.

    Register i of a lane holds rows 2t and 2t+1 of column g: a B fragment of rows in shared memory.
    """,
)
ldmatrix_x2_trans = _ldmatrix(
    2, True, "``ldmatrix.m8n8.x2.trans.b16``: see `ldmatrix_x2` and `ldmatrix_x4_trans`."
)
ldmatrix_x1_trans = _ldmatrix(
    1, True, "``ldmatrix.m8n8.x1.trans.b16``: see `ldmatrix_x1` and `ldmatrix_x4_trans`."
)


def _pack(name, text, dtype, doc) -> Any:
    def emulate(low, high):
        pair = np.array([low, high], np.float32).astype(DTYPES[dtype])
        return pair.view(np.uint32)[0]

    def typing(typingctx, low, high):
        def codegen(context, builder, signature, args):
            operands = [
                context.cast(builder, value, have, types.float32)
                for value, have in zip(args, (low, high), strict=True)
            ]
            return assembly(builder, text, "=r,f,f", operands, I32)

        return types.uint32(low, high), codegen

    typing.__name__ = name
    operation = emulated_by(emulate)(typing)
    operation.__doc__ = doc
    return operation


pack_fp16 = _pack(
    "pack_fp16",
    "cvt.rn.f16x2.f32 $0, $2, $1;",
    "fp16",
    """``cvt.rn.f16x2.f32`` (9.7.9.22): two float32 rounded to fp16 in one register, cc 8.0.

    ``pack_fp16(low, high)``: `low` in bits 0 to 15.
    """,
)
pack_bf16 = _pack(
    "pack_bf16",
    "cvt.rn.bf16x2.f32 $0, $2, $1;",
    "bf16",
    "``cvt.rn.bf16x2.f32`` (9.7.9.22): two float32 rounded to bf16; see `pack_fp16`.",
)
pack_fp16_by_parts = _pack(
    "pack_fp16_by_parts",
    "{ .reg .b16 low, high; cvt.rn.f16.f32 low, $1; cvt.rn.f16.f32 high, $2; "
    "mov.b32 $0, {low, high}; }",
    "fp16",
    "``cvt.rn.f16.f32`` twice and ``mov.b32`` (9.7.9.22): `pack_fp16` for cc 7.5.",
)
