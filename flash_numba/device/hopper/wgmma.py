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

from ..numba_cuda import types
from ..ptx import F32
from .assembly import assembly, described, register_pointers
from .emulation import products
from .layouts import SwizzledTile
from .operands import described_operand

KINDS = {"fp16": "f16", "bf16": "bf16"}
DEPTH = 16
"""Depth of one step."""


def accumulator_order(n: int) -> list[int]:
    """Flat numbers of the elements of a (2, n // 4) array in the order of wgmma's registers."""
    return [(r // 2 % 2) * (n // 4) + r // 4 * 2 + r % 2 for r in range(n // 2)]


def _text(n: int, kind: str, steps: list[tuple[str, str, str]], overwrite: bool) -> str:
    """All steps of a product of `n` columns as one text that nothing can be moved into.

    Of each step: what is done before it, its operands, and flags; `overwrite` leaves old sums out.
    """
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


def _start(
    text: str, n: int, depth: int, adds: bool, read_a, b: int, emulate, words: str, **hooks
) -> Any:
    """``product(acc, a, sB)``: start the products of a text, and give the sums to `acc`.

    Parameters
    ----------
    text : str
        Of `_text`. Its operands are the sums, then those of A, then B's descriptor.
    n, depth : int
        Columns of the sums, and of A.
    adds : bool
        The text adds to the sums; else their old values are not even read.
    read_a : function
        ``read_a(context, builder, kind, a)``: the LLVM values of A's operands.
    b : int
        `SwizzledTile.by_rows` or `by_columns` of B.
    emulate, hooks
        As for `assembly.described`.
    words : str
        For the docstring.
    """

    def typing(typingctx, acc, a, sB):
        def codegen(context, builder, signature, args):
            pointers = register_pointers(context, builder, acc, args[0], accumulator_order(n))
            old = [builder.load(pointer) for pointer in pointers] if adds else []
            inputs = read_a(context, builder, a, args[1])
            inputs.append(described_operand(context, builder, sB, args[2], b))
            sums = assembly(builder, text, inputs, [F32] * (n // 2), old)
            for pointer, value in zip(pointers, sums, strict=True):
                builder.store(value, pointer)
            return context.get_dummy_value()

        return types.void(acc, a, sB), codegen

    doc = f"``wgmma.mma_async`` with {words}"
    hooks |= {"flops": {"matmul": 2 * 64 * n * depth}, "instructions": depth // DEPTH}
    return described(typing, emulate, doc, "wgmma", "warpgroup", **hooks)


def _start_of_shared(
    dtype: str, n: int, steps: list[tuple[int, int]], descriptors: tuple[int, int], transposed: str,
    emulate, words: str,
):  # fmt: skip
    """`_start` of a product of `n` columns, both operands in shared memory; old sums are left out.

    `steps` has for each step how many bytes its parts of A and B are behind the first;
    `descriptors` are those of A and B, `transposed` their flags, 1 for one read by columns.
    """
    first, (descriptor_a, descriptor_b) = n // 2, descriptors
    prepare = "add.s64 da, ${}, {}; add.s64 db, ${}, {};"
    texts = [prepare.format(first, a // 16, first + 1, b // 16) for a, b in steps]
    parts = [(one, "da, db", transposed) for one in texts]

    def read_a(context, builder, kind, a):
        return [described_operand(context, builder, kind, a, descriptor_a)]

    text = _text(n, KINDS[dtype], parts, overwrite=True)
    depth = DEPTH * len(steps)
    return _start(text, n, depth, False, read_a, descriptor_b, emulate, words)


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
    descriptors, emulate = (a.by_rows(), b.by_rows()), products.multiply_tiles(dtype, a, b)
    words = "both operands in shared memory; see `make_multiply_tiles`."
    return _start_of_shared(dtype, b.rows, steps, descriptors, "0, 0", emulate, words)


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

    def read_a(context, builder, kind, a):
        pointers = register_pointers(context, builder, kind, a, range(words))
        return [builder.load(pointer) for pointer in pointers]

    return _start(
        _text(n, kind, steps, overwrite=False),
        n,
        depth,
        True,
        read_a,
        b.by_columns(),
        products.add_product(dtype, depth, b),
        "A in registers; see `make_add_product`.",
        values=(1,),
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
    descriptors = a.by_columns(), b.by_rows()
    emulate = products.multiply_columns(dtype, a, count, b, n)
    words = "A transposed in shared memory; see `make_multiply_columns`."
    return _start_of_shared(dtype, n, steps, descriptors, "1, 0", emulate, words)


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
    descriptors, emulate = (a.by_rows(), b.by_columns()), products.multiply_rows(dtype, a, b)
    words = "both operands in shared memory; see `make_multiply_rows`."
    return _start_of_shared(dtype, b.columns, steps, descriptors, "0, 1", emulate, words)


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
