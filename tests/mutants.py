"""Small wrong versions of a source file, made from its syntax tree.

A mutant changes one operator, comparison, constant or branch, or drops one statement. Annotations,
docstrings, raised errors and table texts are left alone: they do not compute anything.
"""

import ast
import copy
import random
from dataclasses import dataclass
from pathlib import Path

SWAPPED = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.MatMult: ast.Add,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.USub: ast.UAdd,
}


Node = ast.expr | ast.stmt


@dataclass(frozen=True)
class Mutant:
    """One change to one file.

    Attributes
    ----------
    path : str
        The file, relative to the repository.
    line : int
        Where the change is.
    change : str
        What it does, such as ``Add -> Sub``.
    source : str
        The whole mutated file.
    """

    path: str
    line: int
    change: str
    source: str

    def __str__(self):
        return f"{self.path}:{self.line} {self.change}"


def mutants(root: Path, path: str) -> list[Mutant]:
    """Every mutant of one file, in source order."""
    tree = ast.parse((root / path).read_text(encoding="utf-8"))
    found = []
    for index, node in enumerate(_computing_nodes(tree)):
        for variant, (change, _) in enumerate(_changes(node)):
            mutated = copy.deepcopy(tree)
            target = _computing_nodes(mutated)[index]
            _changes(target)[variant][1]()
            source = ast.unparse(ast.fix_missing_locations(mutated))
            found.append(Mutant(path, node.lineno, change, source))
    return found


def sample(root: Path, path: str, count: int, seed: int = 0) -> list[Mutant]:
    """`count` mutants of one file, spread over it, the same ones every time."""
    every = mutants(root, path)
    picked = random.Random(f"{path} {seed}").sample(range(len(every)), min(count, len(every)))
    return [every[i] for i in sorted(picked)]


def _computing_nodes(tree: ast.AST) -> list[Node]:
    """Nodes inside function bodies that compute, in source order."""
    nodes: list[Node] = []

    def visit(node, inside):
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
            return
        if isinstance(node, ast.FunctionDef):
            for statement in node.body:
                visit(statement, True)
            return
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                visit(node.value, inside)
            return
        if inside and isinstance(node, Node):
            nodes.append(node)
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    visit(tree, False)
    return nodes


def _changes(node: Node) -> list:
    """(name, function that applies the change in place) for each change of this node."""
    changes = []

    def put(field, value):
        return lambda: setattr(node, field, value)

    operator = getattr(node, "op", None)
    if type(operator) in SWAPPED:
        other = SWAPPED[type(operator)]
        changes.append((f"{type(operator).__name__} -> {other.__name__}", put("op", other())))
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPPED:
        other = SWAPPED[type(node.ops[0])]
        name = f"{type(node.ops[0]).__name__} -> {other.__name__}"
        changes.append((name, put("ops", [other(), *node.ops[1:]])))
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        changes.append((f"{node.value} -> {not node.value}", put("value", not node.value)))
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        changes.append((f"{node.value} -> {node.value + 1}", put("value", node.value + 1)))
    if isinstance(node, ast.IfExp):
        changes.append(("branches swapped", _swap_branches(node)))
    if isinstance(node, ast.AugAssign) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ):
        changes.append(("statement dropped", _drop(node)))
    return changes


def _swap_branches(node: ast.IfExp):
    def apply():
        node.body, node.orelse = node.orelse, node.body

    return apply


def _drop(node: ast.stmt):
    def apply():
        node.__class__ = ast.Pass
        node.__dict__ = {k: v for k, v in node.__dict__.items() if k in ast.Pass._attributes}

    return apply
