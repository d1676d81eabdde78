"""The kernels that this package has."""

import ast
from pathlib import Path

import flash_numba

FOLDER = Path(flash_numba.__file__).parent / "kernels"


def kernels_of_package() -> set[str]:
    """Names of all functions that ``@kernel(threads)`` makes kernels."""
    return {
        node.name
        for path in FOLDER.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and any(map(_is_kernel, node.decorator_list))
    }


def _is_kernel(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == "kernel"
