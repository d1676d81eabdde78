"""The puzzles, and how answers are checked; `simulator.grade` is the way in.

Reading order: `formulas`, `cases`, `verdict`, `formula_puzzles`, `bench`, `tile_puzzles`,
`tile_limits`, `tile_steps`, `tile_flash`, `tile_backward`, `kernel_puzzles`, `kernel_list`.
"""

from .formula_puzzles import FORMULA_PUZZLES, FormulaPuzzle
from .kernel_list import KERNEL_PUZZLES
from .kernel_puzzles import KernelPuzzle
from .tile_backward import BACKWARD_PUZZLES
from .tile_flash import FLASH_PUZZLES
from .tile_puzzles import TilePuzzle
from .tile_steps import STEP_PUZZLES
from .verdict import Grade, Wrong

__all__ = ["PUZZLES", "Grade", "Wrong"]

PUZZLES: dict[str, FormulaPuzzle | TilePuzzle | KernelPuzzle] = {
    puzzle.name: puzzle
    for puzzle in (
        *FORMULA_PUZZLES,
        *STEP_PUZZLES,
        *FLASH_PUZZLES,
        *BACKWARD_PUZZLES,
        *KERNEL_PUZZLES,
    )
}
"""Every puzzle by name, from predicting traffic to writing the backward pass as a kernel."""
