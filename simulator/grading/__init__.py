"""The puzzles, and how answers are checked; `simulator.grade` is the way in.

Reading order: `formulas`, `cases`, `verdict`, `limit`, `formula_puzzles`, `bench`, `tile_puzzles`,
`tile_limits`, `tile_steps`, `tile_flash`, `tile_backward`, `kernel_puzzles`, `kernel_list`,
`warp_list`, `later_formulas`, `array_puzzles`.
"""

from .array_puzzles import ARRAY_PUZZLES, ArrayPuzzle
from .formula_puzzles import FORMULA_PUZZLES, FormulaPuzzle
from .kernel_list import KERNEL_PUZZLES
from .kernel_puzzles import KernelPuzzle
from .later_formulas import LATER_FORMULAS
from .tile_backward import BACKWARD_PUZZLES
from .tile_flash import FLASH_PUZZLES
from .tile_puzzles import TilePuzzle
from .tile_steps import STEP_PUZZLES
from .verdict import Grade, Wrong
from .warp_list import WARP_PUZZLES

__all__ = ["PUZZLES", "Grade", "Wrong"]

PUZZLES: dict[str, FormulaPuzzle | TilePuzzle | KernelPuzzle | ArrayPuzzle] = {
    puzzle.name: puzzle
    for puzzle in (
        *FORMULA_PUZZLES,
        *STEP_PUZZLES,
        *FLASH_PUZZLES,
        *BACKWARD_PUZZLES,
        *KERNEL_PUZZLES,
        *WARP_PUZZLES,
        *ARRAY_PUZZLES,
        *LATER_FORMULAS,
    )
}
"""Every puzzle by name, from predicting traffic to writing the backward pass as a kernel."""
