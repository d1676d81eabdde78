"""Answers to the puzzles that want a number."""

from . import Answers

standard = Answers("predict_standard")
standard.right(
    "one line", "def predict_standard(N, M, d):\n    return 4 * N * M + 2 * (N + M) * d\n"
)
standard.right(
    "by tensor",
    """
def predict_standard(N, M, d):
    moved = {"Q": N * d, "K": M * d, "V": M * d, "O": N * d}
    moved["S"] = moved["P"] = 2 * N * M
    return sum(moved.values())
""",
)
standard.wrong("S alone", "P is as large", "2 * N * M\n", "0\n")
standard.wrong("nothing of N x M", "four times", "+ N * M", "", "2 * N * M", "0", "N * M + M", "M")
standard.wrong(
    "square",
    "equally many",
    "return scores",
    "M = N\n    return 4 * N * M + 4 * N * d\n    return scores",
)
standard.wrong("bytes", "is right", "scores + softmax", "2 * (scores + softmax)")
standard.wrong("order of growth", "is right", "scores + softmax + output", "N * M + N * d")
standard.wrong("returns nothing", "None", "return scores", "scores = scores")

flash2 = Answers("predict_flash2")
flash2.right(
    "with math.ceil",
    """
import math


def predict_flash2(N, M, d, B_r, B_c):
    return 2 * N * d + N + math.ceil(N / B_r) * 2 * M * d
""",
)
flash2.right(
    "by a loop",
    """
def predict_flash2(N, M, d, B_r, B_c):
    total = 0
    for start in range(0, N, B_r):
        rows = min(B_r, N - start)
        total += rows * d + 2 * M * d + rows * d + rows
    return total
""",
)
flash2.wrong("K and V once", "for every query tile", "T_r * 2", "2")
flash2.wrong("rounded down", "round up", "-(-N // B_r)", "N // B_r")
flash2.wrong("no lse", "LSE is written too", " + N\n", "\n")
flash2.wrong("tiles of keys", "it is the query tiles", "-(-N // B_r)", "-(-M // B_c)")
flash2.wrong("not whole", "is right", "-(-N // B_r)", "N / B_r")
flash2.wrong("Q once a key tile", "is right", "N * d + T_r", "-(-M // B_c) * N * d + T_r")
flash2.wrong("no such name", "NameError", "T_r *", "T_c *")

even = Answers("break_even")
even.right(
    "by a loop", "def break_even(d):\n    return next(b for b in range(1, 999) if 2 * d < 4 * b)"
)
even.right("floats", "import math\n\n\ndef break_even(d):\n    return math.floor(d / 2) + 1")
even.wrong("equality", "both move the same", "d // 2 + 1", "d // 2")
even.wrong("half", "half as much", "d // 2 + 1", "d + 1")
even.wrong("a float", "is right", "d // 2", "d / 2")
even.wrong("flash1's", "is right", "d // 2 + 1", "(3 * d + 4) // 4 + 1")
even.wrong("always 64", "is right", "d // 2 + 1", "64")

tall = Answers("tallest_tile")
tall.right(
    "by a loop",
    """
def tallest_tile(d, sram_bytes):
    rows = 16
    while 2 * d * (rows + 16 + 32) <= sram_bytes:
        rows += 16
    return rows
""",
)
tall.right(
    "from the top",
    """
def tallest_tile(d, sram_bytes):
    sizes = range(65536, 0, -16)
    return next(rows for rows in sizes if 2 * (rows + 2 * 16) * d <= sram_bytes)
""",
)
tall.wrong("one tile beside", "K and V take a tile each", "2 * 16", "16")
tall.wrong("one byte", "two bytes", "(2 * d)", "d")
tall.wrong("fp32", "fp32", "(2 * d)", "(4 * d)")
tall.wrong("Q alone", "K and V need room", " - 2 * 16", "")
tall.wrong("not rounded", "is right", "rows // 16 * 16", "rows")
tall.wrong("rounded up", "is right", "rows // 16 * 16", "-(-rows // 16) * 16")

ANSWERS = (standard, flash2, even, tall)
