"""Puzzles that want a function of arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from .formulas import Tensors
from .verdict import Wrong, close, code_of, difference, on_one_line, place_of


@dataclass(frozen=True, kw_only=True)
class ArrayPuzzle:
    """A function of NumPy arrays to write.

    Attributes
    ----------
    name, statement : str
    hints : tuple of str
        From a nudge to nearly the answer.
    parameters, results : tuple of str
        Of the answer, in order.
    cases : mapping of str to callable
        Makes the arrays of each case, in float64, of values that float32 holds.
    expected : callable
        The results of such arrays, in their own type.
    mistakes : mapping of str to callable
        What wrong results may mean, and of the arrays the results that mean it.
    """

    name: str
    statement: str
    hints: tuple[str, ...]
    parameters: tuple[str, ...]
    results: tuple[str, ...]
    cases: Mapping[str, Callable[[], Tensors]]
    expected: Callable[[Tensors], Tensors]
    mistakes: Mapping[str, Callable[[Tensors], Tensors]] = field(default_factory=dict)

    @property
    def signature(self) -> str:
        """How the answer is called."""
        return f"{self.name}({', '.join(self.parameters)}) -> {', '.join(self.results)}"

    def check(self, answer: Callable) -> str:
        """What was checked, if the answer is right.

        Raises
        ------
        Wrong
            With the reason.
        """
        code = code_of(answer)
        end = code.co_filename, max(line for *_, line in code.co_lines() if line is not None)
        for label, make in self.cases.items():
            exact = make()
            inputs = {name: array.astype(np.float32) for name, array in exact.items()}
            try:
                with np.errstate(all="ignore"):
                    found = answer(*(inputs[name].copy() for name in self.parameters))
            except Exception as error:
                told = f"fails: {type(error).__name__}: {on_one_line(str(error))} ({label})"
                raise Wrong(told, place_of(error, code.co_filename)) from error
            self._check(found, exact, inputs, label, end)
        return f"right on {len(self.cases)} cases: {', '.join(self.cases)}"

    def _check(self, found, exact: Tensors, inputs: Tensors, label: str, end) -> None:
        wanted = ", ".join(self.results)
        if not isinstance(found, tuple) or len(found) != len(self.results):
            raise Wrong(f"must return {len(self.results)} arrays, {wanted} ({label})", end)
        truth, twin = self.expected(exact), self.expected(inputs)
        for name, result in zip(self.results, found, strict=True):
            array = np.asarray(result)
            if not close(array, truth[name], twin[name]):
                why = self._meaning(found, inputs) or difference(name, array, truth[name])
                raise Wrong(f"gives a wrong {name}: {why} ({label})", end)

    def _meaning(self, found: tuple, inputs: Tensors) -> str | None:
        """The known mistake that gives these very results."""
        for why, wrong in self.mistakes.items():
            with np.errstate(all="ignore"):
                means = wrong(inputs)
            pairs = zip(self.results, found, strict=True)
            if all(
                np.shape(one) == means[name].shape
                and np.allclose(one, means[name], 1e-4, 1e-4, equal_nan=True)
                for name, one in pairs
            ):
                return why
        return None


def parts(shift: float, empty_a: tuple[int, ...] = (), empty_b: tuple[int, ...] = ()) -> Tensors:
    """O and lse of two parts of the keys of twelve rows; `empty` rows saw no key in a part."""
    rng = np.random.default_rng([int(abs(shift)), len(empty_a), len(empty_b)])
    found = {}
    for name, empty in (("a", empty_a), ("b", empty_b)):
        O, lse = rng.standard_normal((12, 4)), shift + 3 * rng.standard_normal(12)
        O[list(empty)], lse[list(empty)] = 0, -np.inf
        found[f"O_{name}"], found[f"lse_{name}"] = O, lse
    return {name: array.astype(np.float32).astype(np.float64) for name, array in found.items()}


def merged(t: Tensors) -> Tensors:
    """O and lse of both parts."""
    m = np.maximum(t["lse_a"], t["lse_b"])
    finite = np.where(np.isneginf(m), 0, m)
    weights = {name: np.exp(t[f"lse_{name}"] - finite) for name in ("a", "b")}
    with np.errstate(divide="ignore"):
        lse = finite + np.log(weights["a"] + weights["b"])
    seen = np.where(np.isneginf(lse), 0, lse)  # what rounding of a large lse costs is allowed
    a, b = (np.exp(t[f"lse_{name}"] - seen)[:, None] * t[f"O_{name}"] for name in ("a", "b"))
    return {"O": a + b, "lse": lse}


def _unscaled(t: Tensors) -> Tensors:
    a, b = np.exp(t["lse_a"]), np.exp(t["lse_b"])
    O = (a[:, None] * t["O_a"] + b[:, None] * t["O_b"]) / (a + b)[:, None]
    return {"O": O, "lse": np.log(a + b)}


ARRAY_PUZZLES = (
    ArrayPuzzle(
        name="merge_parts",
        statement="""The keys of some rows were divided in two parts: two GPUs, or two blocks.
Each part gives its own O (rows x d), divided by its own sum, and its lse (rows). Return O and
lse over all keys. A row that saw no key in a part has O = 0 and lse = -inf there; where it saw
none at all, that is the result, too. lse may be in the hundreds, of either sign, and exp of that
overflows.""",
        hints=(
            "O_a stands for e^(lse_a) of weight, O_b for e^(lse_b).",
            "Subtract the larger lse from both before exp: weights are then at most 1.",
            "Where both are -inf, subtract 0 instead; the weights are 0, and O is 0 divided by 1, "
            "not by 0.",
        ),
        parameters=("O_a", "lse_a", "O_b", "lse_b"),
        results=("O", "lse"),
        cases={
            "ordinary lse": lambda: parts(1.0),
            "lse of some 400": lambda: parts(400.0),
            "lse of some -400": lambda: parts(-400.0),
            "rows without keys": lambda: parts(2.0, (0, 1, 2), (2, 3)),
        },
        expected=merged,
        mistakes={
            "O is added up without weights; each part was divided by its own sum": lambda t: {
                "O": t["O_a"] + t["O_b"],
                "lse": merged(t)["lse"],
            },
            "O is the mean of both parts; their weights are e^lse": lambda t: {
                "O": (t["O_a"] + t["O_b"]) / 2,
                "lse": merged(t)["lse"],
            },
            "exp(lse) overflows or vanishes: subtract the larger of the two first": _unscaled,
            "lse is the larger of the two; the other part adds to the sum": lambda t: {
                "O": merged(t)["O"],
                "lse": np.maximum(t["lse_a"], t["lse_b"]),
            },
            "the weights of the parts are exchanged": lambda t: {
                "O": merged({**t, "O_a": t["O_b"], "O_b": t["O_a"]})["O"],
                "lse": merged(t)["lse"],
            },
        },
    ),
)
"""Arrays in, arrays out."""
