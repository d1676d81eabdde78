"""Products of a warpgroup: ``wgmma.mma_async`` (PTX ISA 9.0, 9.7.15).

128 threads multiply a 64-row A by an N-column B, 16 deep a step. B lies in shared memory, A there
or in registers; sums are float32 registers. Lane t of warp w of the warpgroup holds rows
``16 * w + t // 4 + 8 * i`` and columns ``t % 4 * 2 + 8 * (j // 2) + j % 2`` of the sums in
``acc[i, j]`` (9.7.15.5.1.1)::

    columns   0  1 | 2  3 | 4  5 | 6  7 | 8  9 ...
    row 0      lane 0 | lane 1 | lane 2 | lane 3 | lane 0 ...      i = 0
    row 1      lane 4 | lane 5 | ...
    row 8      lane 0 | lane 1 | ...                               i = 1

Products run on their own after they were issued. Until `make_wait`'s operation says they are done,
nobody may touch their registers or overwrite their operands in shared memory.
"""

from functools import cache
from typing import Any

from ..numba_cuda import ir, types
from ..ptx import F32, I32, I64, emulated_by
from .assembly import assembly, described, register_pointers, shared_address
from .emulation import products
from .layouts import SwizzledTile

KINDS = {"fp16": "f16", "bf16": "bf16"}
DEPTH = 16
"""Depth of one step."""


def accumulator_order(n: int) -> list[int]:
    """Flat numbers of the elements of a (2, n // 4) array in the order of wgmma's registers."""
    return [(r // 2 % 2) * (n // 4) + r // 4 * 2 + r % 2 for r in range(n // 2)]


def _described(context, builder, kind, operand, descriptor: int):
    """The descriptor of an operand: an array where it starts, or what `make_operand` made of it."""
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
            made = _described(context, builder, shared, args[0], descriptor)
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


def _text(n, kind, steps, overwrite) -> str:
    """All steps of a product as one text that nothing can be moved into."""
    count = n // 2
    sums = "{" + ", ".join(f"${i}" for i in range(count)) + "}"
    lines = ["{ .reg .pred keep, fresh; .reg .b64 da, db;"]
    lines += ["setp.eq.b32 keep, 0, 0; setp.ne.b32 fresh, 0, 0;", "wgmma.fence.sync.aligned;"]
    for number, (prepare, operands, flags) in enumerate(steps):
        scale = "fresh" if overwrite and number == 0 else "keep"
        lines.append(prepare)
        lines.append(
            f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{kind}.{kind} "
            f"{sums}, {operands}, {scale}, 1, 1, {flags};"
        )
    lines.append("wgmma.commit_group.sync.aligned; }")
    return "\n".join(lines)


def _text_of_shared(dtype: str, n: int, steps: list[tuple[int, int]], transposed: str) -> str:
    """`_text` of ``A @ B``, both in shared memory, that leaves the old sums out.

    `steps` has for each step how many bytes its parts of A and B are behind the first; `transposed`
    are the flags of A and B, 1 for one that is read by columns.
    """
    first = n // 2
    prepare = "add.s64 da, ${}, {}; add.s64 db, ${}, {};"
    texts = [prepare.format(first, a // 16, first + 1, b // 16) for a, b in steps]
    return _text(n, KINDS[dtype], [(one, "da, db", transposed) for one in texts], overwrite=True)


def _products(n: int, depth: int) -> dict[str, int]:
    """Operations of a product of 64 rows, `n` columns and that depth."""
    return {"matmul": 2 * 64 * n * depth}


def _product_of_shared(
    text: str, n: int, depth: int, descriptors: tuple[int, int], emulate, words: str
) -> Any:
    """``multiply(acc, sA, sB)`` of `n` columns: a text whose operands are both in shared memory.

    `descriptors` are those of A and B; `acc` is a (2, n // 4) local array, only written.
    """
    operations = _products(n, depth)

    def typing(typingctx, acc, sA, sB):
        def codegen(context, builder, signature, args):
            pointers = register_pointers(context, builder, acc, args[0], accumulator_order(n))
            starts = [
                _described(context, builder, shared, array, descriptor)
                for shared, array, descriptor in zip((sA, sB), args[1:], descriptors, strict=True)
            ]
            sums = assembly(builder, text, starts, [F32] * (n // 2))
            for pointer, value in zip(pointers, sums, strict=True):
                builder.store(value, pointer)
            return context.get_dummy_value()

        return types.void(acc, sA, sB), codegen

    doc = f"``wgmma.mma_async`` with {words}"
    return described(typing, emulate, doc, "wgmma", "warpgroup", flops=operations)


@cache
def make_multiply_tiles(dtype: str, a: SwizzledTile, b: SwizzledTile) -> Any:
    """``multiply_tiles(acc, sA, sB)``: start ``acc = A @ B.T``, both read by rows.

    Parameters
    ----------
    dtype : "fp16" or "bf16"
    a, b : SwizzledTile
        The tile that holds the 64 rows of A - a warpgroup's part of it starts at ``sA`` - and that
        of B. As many columns each; a multiple of 16.

    Notes
    -----
    `acc` is a (2, b.rows // 4) local array whose old values do not count. The text is one piece:
    the fence that orders earlier uses of the registers, all steps, and the commit of the group.
    """
    steps = [(a.step_along_row(i), b.step_along_row(i)) for i in range(a.columns // DEPTH)]
    return _product_of_shared(
        _text_of_shared(dtype, b.rows, steps, "0, 0"),
        b.rows,
        a.columns,
        (a.by_rows(), b.by_rows()),
        products.multiply_tiles(dtype, a, b),
        "both operands in shared memory; see `make_multiply_tiles`.",
    )


@cache
def make_add_product(dtype: str, depth: int, b: SwizzledTile) -> Any:
    """``add_product(acc, rA, sB)``: start ``acc += A @ B``, A in registers, B read by columns.

    Parameters
    ----------
    dtype : "fp16" or "bf16"
    depth : int
        Columns of A and rows of B, a multiple of 16.
    b : SwizzledTile

    Notes
    -----
    `acc` is a (2, b.columns // 4) local array, `rA` one of (depth // 16, 4) pairs of numbers: in
    the order of the sums, ``rA[k, 2 * h + i]`` holds row i, columns ``16 * k + 8 * h`` and the
    next of this lane. One text, as in `make_multiply_tiles`.
    """
    n, kind, words = b.columns, KINDS[dtype], depth // DEPTH * 4
    first = n // 2
    steps = []
    for step in range(depth // DEPTH):
        a = ", ".join(f"${first + 4 * step + i}" for i in range(4))
        prepare = f"add.s64 db, ${first + words}, {b.step_down_rows(step) // 16};"
        steps.append((prepare, f"{{{a}}}, db", "1"))
    text = _text(n, kind, steps, overwrite=False)

    def typing(typingctx, acc, rA, sB):
        def codegen(context, builder, signature, args):
            pointers = register_pointers(context, builder, acc, args[0], accumulator_order(n))
            sums = [builder.load(pointer) for pointer in pointers]
            left = [
                builder.load(pointer)
                for pointer in register_pointers(context, builder, rA, args[1], range(words))
            ]
            start = _described(context, builder, sB, args[2], b.by_columns())
            sums = assembly(builder, text, [*left, start], [F32] * (n // 2), sums)
            for pointer, value in zip(pointers, sums, strict=True):
                builder.store(value, pointer)
            return context.get_dummy_value()

        return types.void(acc, rA, sB), codegen

    return described(
        typing,
        products.add_product(dtype, depth, b),
        "``wgmma.mma_async`` with A in registers; see `make_add_product`.",
        "wgmma",
        "warpgroup",
        values=(1,),
        flops=_products(n, depth),
    )


@cache
def make_multiply_columns(dtype: str, a: SwizzledTile, count: int, b: SwizzledTile, n: int) -> Any:
    """``multiply_columns(acc, sA, sB)``: start ``acc = A.T @ B.T``, A read by columns, B by rows.

    Parameters
    ----------
    dtype : "fp16" or "bf16"
    a : SwizzledTile
        One of `count` tiles that hold A's rows, one below the other. ``sA`` is one panel of 64
        columns of each: (count, a.rows, 64).
    b : SwizzledTile
        Of ``count * a.rows`` columns; `n` of its rows, from ``sB``'s first on, are B.
    n : int
        A multiple of 8.

    Notes
    -----
    `acc` is a (2, n // 4) local array whose old values do not count. One text, as in
    `make_multiply_tiles`.
    """
    parts = [divmod(i * DEPTH, a.rows) for i in range(count * a.rows // DEPTH)]
    places = [tile * a.bytes + a.step_down_rows(row // DEPTH) for tile, row in parts]
    steps = [(place, b.step_along_row(i)) for i, place in enumerate(places)]
    return _product_of_shared(
        _text_of_shared(dtype, n, steps, "1, 0"),
        n,
        count * a.rows,
        (a.by_columns(), b.by_rows()),
        products.multiply_columns(dtype, a, count, b, n),
        "A transposed in shared memory; see `make_multiply_columns`.",
    )


@cache
def make_multiply_rows(dtype: str, a: SwizzledTile, b: SwizzledTile) -> Any:
    """``multiply_rows(acc, sA, sB)``: start ``acc = A @ B``, A read by rows, B by columns.

    Parameters
    ----------
    dtype : "fp16" or "bf16"
    a, b : SwizzledTile
        The tile that holds the 64 rows of A, and that of B: a row of it for each column of A.

    Notes
    -----
    `acc` is a (2, b.columns // 4) local array whose old values do not count. One text, as in
    `make_multiply_tiles`.
    """
    steps = [(a.step_along_row(i), b.step_down_rows(i)) for i in range(a.columns // DEPTH)]
    return _product_of_shared(
        _text_of_shared(dtype, b.columns, steps, "0, 1"),
        b.columns,
        a.columns,
        (a.by_rows(), b.by_columns()),
        products.multiply_rows(dtype, a, b),
        "both operands in shared memory; see `make_multiply_rows`.",
    )


@cache
def make_wait(pending: int, *counts: int) -> Any:
    """``wait(*arrays)``: until at most `pending` groups of products run; then the arrays are ours.

    Parameters
    ----------
    pending : int
        The newest groups that may go on.
    counts : ints
        Elements of each local array of float32 or uint32: the sums and operands of the groups that
        must be done. They pass through the instruction, so that the compiler can move no use of
        them ahead of it.
    """
    text = f"wgmma.wait_group.sync.aligned {pending};"

    def wait_for(context, builder, signature, args):
        pointers = [
            pointer
            for kind, array, count in zip(signature.args, args, counts, strict=True)
            for pointer in register_pointers(context, builder, kind, array, range(count))
        ]
        values = [builder.load(pointer) for pointer in pointers]
        kept = assembly(builder, text, [], [value.type for value in values], values)
        for pointer, value in zip(pointers, kept, strict=True):
            builder.store(value, pointer)
        return context.get_dummy_value()

    def typing_of_one(typingctx, first):
        return types.void(first), wait_for

    def typing_of_two(typingctx, first, second):
        return types.void(first, second), wait_for

    return described(
        typing_of_one if len(counts) == 1 else typing_of_two,
        products.wait(pending),
        "``wgmma.wait_group`` (9.7.15.7.3); see `make_wait`.",
        scope="warpgroup",
        values=(0, 1),
    )
