"""Whether a kernel's results are right: two heads of it against float64, on the GPU itself.

`flash_numba.reference` says what attention is; this is the same, chunk by chunk of queries in
torch, so that a head of 16,384 queries takes milliseconds. The budget is the project's own
(`flash_numba.budget`: at most twice as wrong as an ordinary framework in the same type) and what a
sum over all queries or keys may round away in fp32 in the order of the tiles.
"""

from __future__ import annotations

import math
from typing import Any

from flash_numba.budget import error_budget

from .cells import Cell

CHUNK = 1 << 25
"""Scores that are in memory at once."""


def head(cell: Cell, q, k, v, do, exact: bool, absolute: bool = False) -> dict[str, Any]:
    """O, lse, dQ, dK and dV of one head, in float64 or as an ordinary framework computes them.

    Parameters
    ----------
    cell : Cell
    q, k, v, do : torch tensors (seqlen, head_dim)
    exact : bool
        True = float64; False = fp32 inside, every result of an operation rounded to q's type.
    absolute : bool
        Return the sums of the magnitudes of the terms instead; 1 for lse, of which a term is a
        part of the whole.

    References
    ----------
    Dao et al., "FlashAttention", NeurIPS 2022, appendix B.2, equations 4 to 6.
    """
    import torch

    inside = torch.float64 if exact else torch.float32
    kept = torch.float64 if exact else q.dtype

    def store(x):
        return x.to(kept).to(inside)

    def term(x):
        return x.abs() if absolute else x

    q, k, v, do = (x.to(inside) for x in (q, k, v, do))
    scale = cell.problem.softmax_scale
    keys = torch.arange(cell.seqlen, device=q.device)
    found: dict[str, list] = {"o": [], "lse": [], "dq": []}
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    rows = max(1, CHUNK // cell.seqlen)
    for at in range(0, cell.seqlen, rows):
        qi, doi = q[at : at + rows], do[at : at + rows]
        s = store(qi @ k.T * scale)
        if cell.causal:
            s.masked_fill_(keys > keys[at : at + rows, None], -torch.inf)
        lse = torch.logsumexp(s, 1)
        p = store(torch.exp(s - lse[:, None]))
        o = store(p @ v)
        found["o"].append(p @ term(v) if absolute else o)
        found["lse"].append(torch.ones_like(lse) if absolute else lse)
        if cell.direction == "backward":
            ds = store(p * (store(doi @ v.T) - (doi * o).sum(1, keepdim=True)))
            ds = store(ds * scale)
            found["dq"].append(store(term(ds) @ term(k)))
            dv += p.T @ term(doi)
            dk += term(ds).T @ term(qi)
    joined = {name: torch.cat(parts) for name, parts in found.items() if parts}
    return joined | ({"dk": store(dk), "dv": store(dv)} if cell.direction == "backward" else {})


class Truth:
    """What two heads of a cell are: the first of the first sequence, the last of the last.

    Computed when first asked for, and once for all rungs.

    Parameters
    ----------
    cell : Cell
    inputs : q, k, v and do, torch tensors (batch, seqlen, heads, head_dim)
    """

    def __init__(self, cell: Cell, inputs):
        self.cell, self.inputs = cell, inputs
        places = {(0, 0), (cell.batch - 1, cell.heads - 1)}
        self._heads: dict[tuple[int, int], tuple | None] = dict.fromkeys(sorted(places))

    def why_wrong(self, results: dict[str, Any]) -> str | None:
        """What is wrong with a kernel's results, or None.

        Every element must be finite (results are NaN before a run, so one that was not written is
        not); two heads are held to the budget. A sum of n terms in fp32 is off by about sqrt(n)
        units in the last place of the sum of their magnitudes.

        Parameters
        ----------
        results : dict of str to torch tensor
            Some of o, dq, dk, dv, like q, and lse (batch, heads, seqlen).

        References
        ----------
        Higham and Mary, "A New Approach to Probabilistic Rounding Error Analysis", 2019.
        """
        for name, array in results.items():
            if not bool(array.isfinite().all()):
                return f"{name} is not finite everywhere"
        for at in self._heads:
            exact, allowed = self._head(at)
            for name, array in results.items():
                of_head = array[at] if name == "lse" else array[at[0], :, at[1]]
                error = (of_head.double() - exact[name]).abs().max().item()
                if not error <= allowed[name]:
                    return (
                        f"{name} of sequence {at[0]}, head {at[1]} is off by {error:.2e}, "
                        f"allowed {allowed[name]:.2e}"
                    )
        return None

    def _head(self, at: tuple[int, int]) -> tuple[dict[str, Any], dict[str, float]]:
        """Results of one head in float64, and how far a kernel may be from each."""
        found = self._heads[at]
        if found is None:
            cell, picked = self.cell, [x[at[0], :, at[1]] for x in self.inputs]
            exact, twin = (head(cell, *picked, exact=exact) for exact in (True, False))
            sums = head(cell, *picked, exact=True, absolute=True)
            unit, allowed = math.sqrt(cell.seqlen) * 2.0**-24, {}
            for name, ref in exact.items():
                dtype = "fp32" if name == "lse" else cell.dtype
                ref, other = (x.double().cpu().numpy() for x in (ref, twin[name]))
                allowed[name] = error_budget(ref, other, dtype) + unit * sums[name].max().item()
            found = self._heads[at] = exact, allowed
        return found
