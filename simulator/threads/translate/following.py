"""Which values are known in all blocks, and what else decides where a kernel goes and accesses.

With ``blocks="representative"`` (`simulator.threads.alike`) one block stands for others, so that no
number from memory may choose an address, an access or a way through the source unless the emulation
follows it in the other blocks, too. Each value has a level here, worked out from the source; what
this module does not know how to follow is `UNKNOWN`, and every block runs.
"""

from __future__ import annotations

import ast

from .infer import Analysis
from .kinds import FLOATS, Kind
from .known import (
    FOLLOWED,
    NUMBERS,
    UNKNOWN,
    WHOLE,
    Book,
    Contents,
    Leak,
    Level,
    frozen,
    least,
    meet,
)


class Statements:
    """The levels of one function's values, for given ones of its arguments.

    Parameters
    ----------
    book : Book
    analysis : Analysis
    levels : list of Level
        One a parameter.
    blind : bool
        Whether the function is called where unknown numbers decide.
    """

    def __init__(self, book: Book, analysis: Analysis, levels, blind: bool):
        self.book, self.analysis, self.blind = book, analysis, blind
        self.env: dict[str, Level] = dict(zip(analysis.parameters, levels, strict=True))
        self.returns: Level | None = None
        self.declared: dict[int, Contents] = {}
        self._blind_loops: set[ast.AST] = set()
        self._loops: list[ast.AST] = []
        self._left = False
        for _ in range(64):
            before = self._state()
            self._body(analysis.body)
            if before == self._state():
                break
        else:
            self.leak("what a function does", analysis.body[0])

    def _state(self) -> tuple:
        contents = [one.level for one in self.declared.values()]
        known = {name: frozen(level) for name, level in self.env.items()}
        return known, frozen(self.returns), contents, len(self._blind_loops), self._left

    def level(self, node) -> Level:
        """Level of an expression."""
        raise NotImplementedError

    def leak(self, what: str, node) -> None:
        """Note that `what` cannot be followed."""
        self.book.leaks[Leak(what, self.analysis.place(node))] = None

    def touch(self, node, what="an access") -> None:
        """Something happens that is counted: it must not depend on unknown numbers."""
        if self.blind:
            self.leak(f"whether {what} happens", node)

    def _body(self, body) -> None:
        for node in self.analysis.live(body):
            outer, self.blind = self.blind, self.blind or self._left
            self._statement(node)
            self.blind = outer

    def _statement(self, node) -> None:
        if isinstance(node, ast.Assign):
            level = self.level(node.value)
            for target in node.targets:
                self._bind(target, level, node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._bind(node.target, self.level(node.value), node.value)
        elif isinstance(node, ast.AugAssign):
            old = _as_load(node.target)
            total = ast.copy_location(ast.BinOp(old, node.op, node.value), node)
            self._bind(node.target, self.level(total), total)
        elif isinstance(node, ast.If):
            self._under(self.level(node.test), [*node.body], [*node.orelse])
        elif isinstance(node, ast.For | ast.While):
            self._loop(node)
        elif isinstance(node, ast.Return):
            level = self.level(node.value) if node.value else WHOLE
            level = self._here(level)
            self.returns = level if self.returns is None else meet(self.returns, level)
            self._leaves(node)
        elif isinstance(node, ast.Break | ast.Continue):
            if self.blind:
                self._blind_loops.add(self._loops[-1])
        elif isinstance(node, ast.Expr):
            self.level(node.value)
        elif isinstance(node, ast.Assert):
            self.level(node.test)

    def _here(self, level: Level) -> Level:
        """Level of what is `level`, if it is known to get there."""
        unknown = self.blind and level != NUMBERS and not isinstance(level, Contents)
        return UNKNOWN if unknown else level

    def _leaves(self, node) -> None:
        """A return: if it is unknown who goes, so is what follows."""
        if self.blind:
            self._left = True
            self._blind_loops.update(self._loops)
            if self.analysis.is_kernel:
                self.leak("whether a thread returns", node)

    def _under(self, test: Level, *arms) -> None:
        outer = self.blind
        if least(test) == UNKNOWN:
            self.blind = self.book.branches = True
        for arm in arms:
            self._body(arm)
        self.blind = outer

    def _loop(self, node) -> None:
        self._loops.append(node)
        if isinstance(node, ast.For):
            turns, item = self._items(node.iter)
            unknown = node in self._blind_loops or least(turns) == UNKNOWN
            self._bind(node.target, UNKNOWN if unknown else item, node.iter)
        else:
            turns = self.level(node.test)
        if self.blind or least(turns) == UNKNOWN:
            self._blind_loops.add(node)
        self._under(UNKNOWN if node in self._blind_loops else WHOLE, node.body)
        if isinstance(node, ast.While):
            outer, self.blind = self.blind, self.blind or node in self._blind_loops
            self.level(node.test)
            self.blind = outer
        self._body(node.orelse)
        self._loops.pop()

    def _items(self, node) -> tuple[Level, Level]:
        """Levels of the number of turns of a loop, and of what it runs over."""
        if name := self.analysis.iterates(node):
            found = [self._items(one) for one in node.args]
            turns = least(*(turn for turn, _ in found))
            items = tuple(item for _, item in found)
            return turns, (WHOLE, items[0]) if name == "enumerate" else items
        level, kind = self.level(node), self.analysis.kind(node)
        if kind.name == "array":
            self.touch(node)
            return WHOLE, self.element(kind, least(level)) if kind.ndim == 1 else least(level)
        if isinstance(level, Contents) and len(kind.shape) > 1:
            level.lower(UNKNOWN)
        if isinstance(level, tuple):
            item = level[0] if level else WHOLE
            for one in level[1:]:
                item = meet(item, one)
            return WHOLE, item
        return least(level), least(level)

    @staticmethod
    def element(array: Kind, where: int) -> int:
        """Level of an element of an array, at a place of this level."""
        followed = array.dtype and array.dtype not in FLOATS and not array.dtype.endswith("16")
        return FOLLOWED if followed and where > UNKNOWN else UNKNOWN

    def _bind(self, target, level: Level, value) -> None:
        level = self._here(level)
        if isinstance(target, ast.Name):
            old = self.env.get(target.id)
            self.env[target.id] = level if old is None else meet(old, level)
        elif isinstance(target, ast.Tuple | ast.List):
            whole = isinstance(level, tuple) and len(level) == len(target.elts)
            if isinstance(level, Contents):
                level.lower(UNKNOWN)
                level = UNKNOWN
            kind = self.analysis.kind(value)
            if kind.name == "array":
                self.touch(target)
                level = self.element(kind, least(level))
            for i, one in enumerate(target.elts):
                self._bind(one, level[i] if whole and isinstance(level, tuple) else level, one)
        elif isinstance(target, ast.Subscript):
            self._store(target, level)

    def _store(self, target, level: Level) -> None:
        base, kind = self.level(target.value), self.analysis.kind(target.value)
        self.level(ast.copy_location(_as_load(target), target))
        if isinstance(base, Contents):
            index = least(*map(self.level, self.analysis.indices(target)))
            base.lower(least(level) if index == WHOLE and not self.blind else UNKNOWN)
        elif kind.name in ("array", "any"):
            key = self.analysis.place(target), target.col_offset
            self.book.stores[key] = self.book.stores.get(key, True) and least(level) > UNKNOWN


def _as_load(target):
    if isinstance(target, ast.Name):
        return ast.copy_location(ast.Name(target.id, ast.Load()), target)
    text = ast.Subscript(target.value, target.slice, ast.Load())
    return ast.copy_location(text, target)
