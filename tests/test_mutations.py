"""The suite must notice: a broken program, formula or reference has to fail some test.

Named mistakes that attention code really has, and a fixed sample of mutants made from the
syntax trees. A mutant that survives must stand in `SURVIVORS` with the reason why it is no mistake.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mutants import Mutant, copied, sample

ROOT = Path(__file__).parents[1]

PROGRAM_TESTS = ("tests/test_three_ways.py", "tests/test_programs.py", "tests/test_machine.py")
TESTS = {
    "simulator/programs": PROGRAM_TESTS,
    "simulator/machine.py": PROGRAM_TESTS,
    "simulator/theory": ("tests/test_theory.py",),
    "flash_numba/reference.py": ("tests/test_reference.py", "tests/test_cases.py"),
    "flash_numba/masks.py": ("tests/test_masks.py", "tests/test_reference.py"),
    "flash_numba/tiling.py": ("tests/test_tiling.py",),
    "flash_numba/device/gradients.py": (
        "tests/test_turns_threads.py",
        "tests/test_flash2_threads.py",
    ),
    "flash_numba/device/aux_sums.py": ("tests/test_aux_gradient_threads.py",),
    "flash_numba/device/late_softmax.py": ("tests/test_late_softmax_threads.py",),
    "flash_numba/device/visits.py": ("tests/test_visits_threads.py",),
    "flash_numba/device": ("tests/test_flash2_threads.py",),
}
"""Which tests are asked about a change to which files."""

SAMPLE = {
    "simulator/programs/flash1.py": 6,
    "simulator/programs/flash2.py": 6,
    "simulator/programs/standard.py": 5,
    "simulator/programs/softmax.py": 5,
    "simulator/theory/flash.py": 5,
    "simulator/theory/standard.py": 4,
    "simulator/theory/visits.py": 5,
    "flash_numba/reference.py": 6,
    "flash_numba/masks.py": 4,
    "flash_numba/tiling.py": 4,
    "flash_numba/device/aux_sums.py": 2,
    "flash_numba/device/dropout.py": 1,
    "flash_numba/device/gradients.py": 1,
    "flash_numba/device/late_softmax.py": 2,
    "flash_numba/device/scores.py": 1,
    "flash_numba/device/visits.py": 2,
}
"""How many mutants of each file."""

SURVIVORS = {
    "simulator/programs/flash2.py forward: 0.0 #2: 0.0 -> 1.0": (
        "what O starts with is multiplied by exp(-inf) = 0 at the first key tile"
    ),
    "flash_numba/reference.py _softmax: 0 #1: 0 -> 1": (
        "exp(-inf - x) is 0 for any finite stand-in x of an empty row's maximum"
    ),
}
"""Mutants that no test can notice, and why that is right."""

MISTAKES = {
    "rescale dropped": (
        "simulator/programs/flash2.py",
        "rescaled if rescale else unscaled",
        "unscaled",
    ),
    "mask off by one": (
        "flash_numba/masks.py",
        "return k_idx <= q_idx + aux[0]\n",
        "return k_idx < q_idx + aux[0]\n",
    ),
    "scale doubled": ("simulator/programs/flash2.py", "scale=gpu.scale", "scale=2 * gpu.scale"),
    "load not counted": (
        "simulator/machine.py",
        "        self.ledger.read(tensor, region.size)\n",
        "",
    ),
    "tail not masked": (
        "flash_numba/tiling.py",
        "min((n_block + 1) * self.tile_n, self.seqlen_k)",
        "(n_block + 1) * self.tile_n",
    ),
    "turn left before all have added": (
        "flash_numba/device/gradients.py",
        'this one wrote is visible to it."""\n    cuda.syncthreads()\n',
        'this one wrote is visible to it."""\n',
    ),
    "far tile not computed again": (
        "flash_numba/device/late_softmax.py",
        "            if far:\n",
        "            if False:\n",
    ),
    "late scale behind the last tile": (
        "flash_numba/device/late_softmax.py",
        "later = not far and not last",
        "later = not far",
    ),
    "turns from the other end": (
        "flash_numba/device/visits.py",
        "visit.stop - 1 - n_block if last_first else n_block - visit.start",
        "n_block - visit.start if last_first else visit.stop - 1 - n_block",
    ),
    "keys beyond the end not masked": (
        "flash_numba/device/visits.py",
        "                partial |= behind * tile_n > seqlen_k\n",
        "",
    ),
    "a visit's slot taken while it is read": (
        "flash_numba/device/visits.py",
        "SLOTS = 8\n",
        "SLOTS = 2\n",
    ),
}
"""Name -> (file, text, replacement)."""

LIMITED = ("sh", "-c", 'ulimit -S -t 180; exec "$@"', "sh")
"""Ends a mutant that runs for ever, by its seconds of processor time: a machine may be busy."""


def mistaken(name: str) -> Mutant:
    path, text, replacement = MISTAKES[name]
    source = (ROOT / path).read_text(encoding="utf-8")
    assert text in source, f"{path} no longer holds {text!r}"
    return Mutant(path, text.strip(), name, source.replace(text, replacement))


def is_noticed(mutant: Mutant, folder: Path) -> bool:
    """Run the tests of the mutated file on a copy of the project."""
    copied(ROOT, folder)
    (folder / mutant.path).write_text(mutant.source, encoding="utf-8")
    tests = next(files for start, files in TESTS.items() if mutant.path.startswith(start))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    env = os.environ | {
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_PROFILE": "mutation",
        "MOST_RANDOM_PROBLEMS": "40",
    }
    done = subprocess.run([*LIMITED, *command], cwd=folder, env=env, capture_output=True)
    assert done.returncode in (0, 1, 2, -signal.SIGXCPU), done.stdout.decode()
    return done.returncode != 0


@pytest.mark.parametrize("name", MISTAKES)
def test_a_named_mistake_fails_the_suite(name, tmp_path):
    assert is_noticed(mistaken(name), tmp_path)


@pytest.mark.parametrize(
    "mutant", [m for path, count in SAMPLE.items() for m in sample(ROOT, path, count)], ids=str
)
def test_a_mutant_fails_the_suite_or_has_its_excuse(mutant, tmp_path):
    assert is_noticed(mutant, tmp_path) == (str(mutant) not in SURVIVORS)
