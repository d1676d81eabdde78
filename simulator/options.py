"""What the options of a command say: sizes, windows, and which options exclude each other."""

from __future__ import annotations

from collections.abc import Mapping

from flash_numba.problem import Problem

SEQLEN, HEAD_DIM = 1024, 64
"""Sizes where no option says them."""


def exclude(first: str, has_first: bool, second: str, has_second: bool) -> None:
    """Raise a ValueError if both options are given."""
    if has_first and has_second:
        raise ValueError(f"{first} cannot go with {second}, got both")


def given_options(values: Mapping[str, object]) -> list[str]:
    """The options that have a value, as they are typed: ``kv_heads`` is ``--kv-heads``."""
    return [f"--{name.replace('_', '-')}" for name, value in values.items() if value is not None]


def problem_of_sizes(sizes: Mapping[str, int | None], seqlen: int = SEQLEN, **options) -> Problem:
    """The problem that size options pose.

    Parameters
    ----------
    sizes : mapping of str to int or None
        Some of seqlen, seqlen_q, seqlen_k, head_dim, heads, kv_heads and batch; None or missing =
        not given.
    seqlen : int
        Queries and keys where none are given.
    **options
        Further fields of `Problem`.

    Raises
    ------
    ValueError
        Naming the option, what is allowed and what was received.
    """
    both = sizes.get("seqlen_q"), sizes.get("seqlen_k")
    given = given_options(sizes)
    for option in ("--seqlen-q", "--seqlen-k"):
        exclude("--seqlen", "--seqlen" in given, option, option in given)
    if both.count(None) == 1:
        raise ValueError(f"--seqlen-q and --seqlen-k must come together, got {', '.join(given)}")
    same = _or(sizes.get("seqlen"), seqlen)
    queries, keys = (_or(side, same) for side in both)
    return Problem(
        queries,
        keys,
        _or(sizes.get("head_dim"), HEAD_DIM),
        batch=_or(sizes.get("batch"), 1),
        num_heads=_or(sizes.get("heads"), 1),
        num_kv_heads=sizes.get("kv_heads"),  # pyright: ignore[reportArgumentType]
        **options,
    )


def window_of(sides: tuple[str, str] | None) -> tuple[int | None, int | None]:
    """A window as typed, such as ``("128", "none")``.

    Raises
    ------
    ValueError
        If a side is neither a whole number nor "none".
    """
    if sides is None:
        return None, None
    try:
        left, right = (None if side.lower() == "none" else int(side) for side in sides)
    except ValueError:
        raise ValueError(f"window must be two whole numbers or 'none', got {sides}") from None
    return left, right


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
