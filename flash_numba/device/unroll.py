"""Loop unrolling: the `#pragma unroll` that Numba lacks.

Put `unroll_full()`, `unroll_none()` or, say, `unroll_4()` first in a loop's body. Each leaves a
marker in the LLVM IR; before the IR goes to NVVM the marker is replaced by `!llvm.loop` metadata
on the back edges of the loop around it. A local array stays in registers only if every index is
a constant, so every loop over one is unrolled in full.
"""

import re
from typing import Any

from .numba_cuda import intrinsic, ir, nvvm, types

_MARKER = "//UNROLL "
_LABEL = re.compile(r'^"?([-\w.$]+)"?:')
_TARGET = re.compile(r'label %"?([-\w.$]+)"?')
_MARKED = re.compile(r'asm sideeffect "//UNROLL (full|disable|count (\d+))"')


def _nothing(*_):
    """On a CPU a loop is a loop."""


def _mark(builder, text):
    kind = ir.FunctionType(ir.VoidType(), [])
    builder.call(ir.InlineAsm(kind, _MARKER + text, "", side_effect=True), [])


def _marker(name, text, doc) -> Any:
    def typing(typingctx):
        def codegen(context, builder, signature, args):
            _mark(builder, text)
            return context.get_dummy_value()

        return types.void(), codegen

    typing.__name__ = name
    marker = intrinsic(typing)
    marker.emulate = _nothing
    marker.__doc__ = doc
    return marker


unroll_full = _marker("unroll_full", "full", "Write out every turn of the loop around this call.")
unroll_none = _marker("unroll_none", "disable", "Keep the loop around this call a loop.")


def _by(count) -> Any:
    text = f"Write out {count} turns of the loop around this call."
    return _marker(f"unroll_{count}", f"count {count}", text)


unroll_2, unroll_4, unroll_8 = _by(2), _by(4), _by(8)


class _Blocks:
    """The basic blocks of one function in IR text: who jumps where, and which edges go back."""

    def __init__(self, lines):
        self.lines, self.order, self.terminator, self.successors = {}, [], {}, {}
        current = None
        for index, line in enumerate(lines):
            if label := _LABEL.match(line):
                current = label.group(1)
                self.order.append(current)
                self.lines[current], self.successors[current] = [], []
            elif current is not None:
                self.lines[current].append(index)
                if re.match(r"^\s+(br|switch) ", line):
                    self.successors[current] = _TARGET.findall(line)
                    self.terminator[current] = index

    def back_edges(self):
        """Pairs (latch, header), found by a depth-first walk."""
        active, done, edges = {self.order[0]}, set(), []
        stack = [(self.order[0], iter(self.successors[self.order[0]]))]
        while stack:
            block, rest = stack[-1]
            for target in rest:
                if target in active:
                    edges.append((block, target))
                elif target not in done:
                    active.add(target)
                    stack.append((target, iter(self.successors[target])))
                    break
            else:
                active.discard(block)
                done.add(block)
                stack.pop()
        return edges

    def loops(self):
        """``header -> (blocks of the loop, its latches)``."""
        predecessors = {block: [] for block in self.order}
        for block, targets in self.successors.items():
            for target in targets:
                predecessors[target].append(block)
        found = {}
        for latch, header in self.back_edges():
            body, latches = found.setdefault(header, ({header}, []))
            latches.append(latch)
            pending = [latch]
            while pending:
                block = pending.pop()
                if block not in body:
                    body.add(block)
                    pending += predecessors[block]
        return found


def _annotate(lines, first_id, metadata):
    """Replace the markers of one function by loop metadata; returns the next free id."""
    blocks = _Blocks(lines)
    loops = blocks.loops()
    for block, indices in blocks.lines.items():
        for index in indices:
            marked = _MARKED.search(lines[index])
            if not marked:
                continue
            lines[index] = ""
            around = [(len(body), header) for header, (body, _) in loops.items() if block in body]
            if not around:
                raise ValueError("an unroll marker must stand inside a loop")
            option = f'!"llvm.loop.unroll.{marked.group(1)}"'
            if count := marked.group(2):
                option = f'!"llvm.loop.unroll.count", i32 {count}'
            loop, options = first_id, first_id + 1
            first_id += 2
            metadata.append(f"!{loop} = distinct !{{!{loop}, !{options}}}")
            metadata.append(f"!{options} = !{{{option}}}")
            for latch in loops[min(around)[1]][1]:
                end = blocks.terminator[latch]
                if "!llvm.loop" in lines[end]:
                    raise ValueError(
                        "two loops share a back edge, so an unroll marker would reach both: "
                        "put a statement after the inner loop"
                    )
                lines[end] += f", !llvm.loop !{loop}"
    return first_id


def annotate_loops(text: str) -> str:
    """LLVM IR text with its unroll markers turned into loop metadata."""
    if _MARKER not in text:
        return text
    out, metadata, function, next_id = [], [], None, 900_000
    for line in text.splitlines():
        if line.startswith("define "):
            function = []
        if function is None:
            out.append(line)
            continue
        function.append(line)
        if line.startswith("}"):
            next_id = _annotate(function, next_id, metadata)
            out += function
            function = None
    return "\n".join(out + metadata) + "\n"


def _install() -> None:
    """Annotate all IR on its way to NVVM (both the PTX and the link-time path)."""
    lower: Any = nvvm.llvm_replace
    if getattr(lower, "annotates_loops", False):
        return

    def llvm_replace(text):
        return annotate_loops(lower(text))

    setattr(llvm_replace, "annotates_loops", True)  # noqa: B010
    nvvm.llvm_replace = llvm_replace


_install()
