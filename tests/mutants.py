"""Small wrong versions of a source file, made from its syntax tree.

A mutant changes one operator, comparison, constant or branch, or drops one statement. Annotations,
docstrings, raised errors, table texts and markers of loops to unroll are left alone: they do not
compute anything.
"""

import ast
import copy
import hashlib
import shutil
from collections import Counter
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
    where : str
        The function, the text that changes, and which of its like there: stable when other lines
        of the file change.
    change : str
        What happens to the text, such as ``Add -> Sub``.
    source : str
        The whole mutated file.
    """

    path: str
    where: str
    change: str
    source: str

    def __str__(self):
        return f"{self.path} {self.where}: {self.change}"


def mutants(root: Path, path: str) -> list[Mutant]:
    """Every mutant of one file, in source order."""
    tree = ast.parse((root / path).read_text(encoding="utf-8"))
    found, seen = [], Counter[str]()
    for index, (function, node) in enumerate(_computing_nodes(tree)):
        text = f"{function}: {' '.join(ast.unparse(node).split())[:60]}"
        seen[text] += 1
        for variant, (change, _) in enumerate(_changes(node)):
            mutated = copy.deepcopy(tree)
            target = _computing_nodes(mutated)[index][1]
            _changes(target)[variant][1]()
            source = ast.unparse(ast.fix_missing_locations(mutated))
            found.append(Mutant(path, f"{text} #{seen[text]}", change, source))
    return found


def sample(root: Path, path: str, count: int) -> list[Mutant]:
    """`count` mutants of one file: those whose names have the smallest hashes.

    So an edit elsewhere in the file leaves the choice as it is.
    """

    def rank(mutant: Mutant) -> bytes:
        return hashlib.sha256(str(mutant).encode()).digest()

    return sorted(mutants(root, path), key=rank)[:count]


def copied(root: Path, folder: Path) -> Path:
    """The packages and tests of `root` in `folder`, which is returned."""
    for part in ("flash_numba", "simulator", "tests"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(root / part, folder / part, ignore=ignored)
    shutil.copy(root / "pyproject.toml", folder)
    return folder


def _computing_nodes(tree: ast.AST) -> list[tuple[str, Node]]:
    """(function, node) of what computes inside function bodies, in source order."""
    nodes: list[tuple[str, Node]] = []

    def visit(node, inside):
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
            return
        if isinstance(node, ast.Expr) and ast.unparse(node).startswith("unroll_"):
            return
        if isinstance(node, ast.FunctionDef):
            for statement in node.body:
                visit(statement, node.name)
            return
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                visit(node.value, inside)
            return
        if inside and isinstance(node, Node):
            nodes.append((inside, node))
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    visit(tree, "")
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
