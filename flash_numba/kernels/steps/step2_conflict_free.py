"""Step 2, conflict-free: pad the array whose rows are read side by side.

The kernel is step 1's. Rows of sQ now begin 65 (or 129) words apart: 32 lanes that read one column
find it in 32 banks. Rows of sK need no padding, since all lanes read one word at a time.
"""

from ...problem import Problem
from .call import run_rows
from .rows import RowTiles
from .step1_naive import make_forward


def tiles_of(head_dim: int) -> RowTiles:
    """Tiles of this step."""
    return RowTiles(head_dim, pad_q=1)


def forward(problem: Problem, q, k, v, out, lse, stream: int = 0):
    """Run the step; parameters as `flash2.forward`, what it cannot do is a ValueError."""
    return run_rows(make_forward, tiles_of, problem, (q, k, v, out, lse), stream)
