"""The panel that shows what changed: one row's numbers before and after, with the arithmetic."""

from __future__ import annotations

import math

import numpy as np

from .glyphs import Glyphs
from .moment import Moment
from .rows import Row
from .sections import Line, Section, line_length

LABEL = 8

CHANGE = 3
"""Pieces that a number before and after takes; arithmetic may follow."""


def row_section(moment: Moment, width: int, height: int, glyphs: Glyphs) -> Section:
    """The row's values; as many digits as the width has room for."""
    row = moment.row
    token = f" '{moment.token}'" if moment.token is not None else ""
    title = f"row {row.row}{token}{_where(moment)}"
    if not row.recorded:
        lines: list[Line] = [[("no numbers were kept of this run", "dim")]]
    elif row.status == "waiting":
        lines = [[(text, "dim")] for text in _waiting(moment)]
    else:
        write = _writer(row)
        choices = [write(moment, digits) for digits in (5, 4, 3, 2)]
        lines = _laid_out(choices, width, height, glyphs)
    return Section(title, lines[:height])


def _writer(row: Row):
    if {"row_max", "row_sum"} <= row.after.keys():
        return forward_lines
    return backward_lines if {"P", "dS", "delta"} <= row.after.keys() else other_lines


def _where(moment: Moment) -> str:
    row = moment.row
    return {
        "waiting": "",
        "current": f", key tile {row.n_block}",
        "between": f", after key tile {row.n_block}",
        "done": f", done, key tile {row.n_block}",
    }[row.status]


def _waiting(moment: Moment) -> list[str]:
    row = moment.row
    visits = moment.replay.visits(moment.step.kernel, row.m_block)
    if len(visits):
        return [f"query tile {row.m_block}: no key tile yet"]
    return ["no numbers of a row in this kernel"]


def forward_lines(moment: Moment, digits: int) -> list[Line]:
    """row_max, rescale factor, row_sum and O, each before and after, and lse at the end."""
    row = moment.row
    a, b = row.before["row_max"], row.after["row_max"]
    c, d = row.before["row_sum"], row.after["row_sum"]
    factor = number(row.rescale, digits)
    lines = [_change("row_max", a, b, "row_max" in row.known, digits)]
    if "row_max" in row.known:
        exponent = number(a - b if a != b else 0.0, digits) if b != -math.inf else "-inf"
        lines[0].append((f"  rescale e^{exponent} = {factor}", ""))
    lines.append(_change("row_sum", c, d, "row_sum" in row.known, digits))
    if "row_sum" in row.known:
        lines[1].append((f" = {number(c, digits)}·{factor} + {number(row.added, digits)}", ""))
    if "O" in row.after:
        lines += _vectors("O", row, digits)
    if row.status == "done" and row.lse is not None:
        text = f"= {number(b, digits)} + log {number(d, digits)} = {number(row.lse, digits)}"
        lines.append([(f"{'lse':<{LABEL}}", "dim"), (text, "")])
    return lines


def backward_lines(moment: Moment, digits: int) -> list[Line]:
    """Lse and delta, some of P and of dS, and the arithmetic of one dS."""
    row, scale = moment.row, moment.meta["softmax_scale"]
    delta = float(row.after["delta"])
    lines: list[Line] = [
        [("delta ", "dim"), (number(delta, digits), "")],
        [(f"{'P':<3}", "dim"), (_listed(row.after["P"], "P" in row.known, digits), "")],
        [(f"{'dS':<3}", "dim"), (_listed(row.after["dS"], "dS" in row.known, digits), "bold")],
    ]
    if "lse" in row.after:
        lines[0] += [("  lse ", "dim"), (number(float(row.after["lse"]), digits), "")]
    if "dS" not in row.known or moment.meta["score_mods"]:
        return lines
    column = int(abs(row.after["P"]).argmax())
    key = row.n_block * moment.meta["tile_n"] + column
    d_p, weight = row.d_p(column, scale), float(row.after["P"][column])
    result = number(float(row.after["dS"][column]), digits)
    lines.append([(f"dS[key {key}] = scale·P·(dP - delta)", "dim")])
    if d_p is None:
        lines.append([("  = 0: the row gives these keys no weight", "")])
    else:
        factors = f"{number(scale, digits)}·{number(weight, digits)}"
        inner = f"({number(d_p, digits)} - {number(delta, digits, signed=True)})"
        lines.append([(f" = {factors}·{inner}", ""), (f" = {result}", "")])
    return lines


def other_lines(moment: Moment, digits: int) -> list[Line]:
    """Whatever values the program keeps, one a line."""
    lines: list[Line] = []
    for name, value in moment.row.after.items():
        known = name in moment.row.known
        text = _listed(value if np.ndim(value) else [value], known, digits)
        lines.append([(f"{name:<{LABEL}}", "dim"), (text, "")])
    return lines


def _change(name: str, before: float, after: float, known: bool, digits: int) -> Line:
    return [
        (f"{name:<{LABEL}}", "dim"),
        (f"{number(before, digits)} → ", ""),
        (number(after, digits) if known else "to come", "bold" if known else "dim"),
    ]


def _vectors(name: str, row: Row, digits: int) -> list[Line]:
    before, after, known = row.before[name], row.after[name], name in row.known
    label = f"{name}[0:{len(after)}]"
    return [
        [(f"{label:<{LABEL}}", "dim"), (_listed(before, True, digits), "")],
        [(f"{'→':>{LABEL - 1}} ", ""), (_listed(after, known, digits), "bold" if known else "dim")],
    ]


def _listed(values, known: bool, digits: int) -> str:
    if not known:
        return "to come"
    return " ".join(f"{number(float(value), digits):>{digits + 3}}" for value in values)


def number(value: float, digits: int, signed: bool = False) -> str:
    """A number with `digits` significant digits; in brackets if negative and `signed`."""
    if math.isinf(value):
        return "-inf" if value < 0 else "inf"
    text = f"{value + 0.0:.{digits}g}"
    return f"({text})" if signed and text.startswith("-") else text


def _laid_out(choices: list[list[Line]], width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """Each line with as many digits as fit.

    Where none do, its last piece gets a line of its own. The arithmetic behind a change goes where
    no line is left for it: the numbers matter more.
    """
    result: list[Line] = []
    room = height - len(choices[0])
    for same in zip(*choices, strict=True):
        fits = [line for line in same if line_length(line, glyphs) <= width]
        if fits or len(same[0]) == 1:
            result.append((fits or same)[0])
            continue
        *kept, (text, style) = same[0]
        result.append(kept)
        if room > 0 or len(kept) < CHANGE:
            result.append([(f"  {text.strip()}", style)])
            room -= 1
    return result
