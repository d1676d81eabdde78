"""Which local arrays cannot be registers.

A GPU cannot index its registers: a local array stays in them only if every index is known once
loops over constant ranges are unrolled. Else it lies in local memory, which is as slow as global.
"""

from __future__ import annotations

import ast

from ..errors import Place
from .infer import Analysis
from .source import assigned


def run_time_indices(analysis: Analysis) -> list[Place]:
    """Lines that index a local array by what is only known at run time.

    Parameters of device functions get the benefit of the doubt: the caller's value may be constant.
    """
    known = set() if analysis.is_kernel else set(analysis.parameters)
    found: list[Place] = []
    _statements(analysis, analysis.body, known, found)
    return found


def _statements(analysis, body, known: set[str], found: list[Place]) -> set[str]:
    """Note the lines in `body`; gives the variables that are known after it."""
    for node in analysis.live(body):
        if isinstance(node, ast.For | ast.While):
            changed = assigned(*node.body)
            inner = known - changed
            if isinstance(node, ast.For):
                target = assigned(node.target)
                fixed = analysis.constant_range(node.iter) is not None
                inner = inner | target if fixed else inner - target
                changed |= target
            _statements(analysis, node.body, inner, found)
            known = _statements(analysis, node.orelse, known - changed, found)
        elif isinstance(node, ast.If):
            _note(analysis, node.test, known, found)
            known = _statements(analysis, node.body, known, found) & _statements(
                analysis, node.orelse, known, found
            )
        else:
            _note(analysis, node, known, found)
            fixed = isinstance(node, ast.Assign) and _is_known(node.value, known, analysis)
            known = known | assigned(node) if fixed else known - assigned(node)
    return known


def _note(analysis, node, known, found) -> None:
    for one in analysis.walk(node):
        local = isinstance(one, ast.Subscript) and analysis.kind(one.value).name == "local"
        if local and not all(_is_known(i, known, analysis) for i in analysis.indices(one)):
            found.append(analysis.place(one))


def _is_known(node, known, analysis) -> bool:
    for one in ast.walk(node):
        if isinstance(one, ast.Name) and one.id in analysis.variables and one.id not in known:
            return False
        if isinstance(one, ast.Call | ast.Subscript):
            return False
        if isinstance(one, ast.Attribute) and analysis.static(one) is None:
            return False
    return True
