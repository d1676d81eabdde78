"""The GPU suite must notice, too: kernels with one mistake each fail a test of theirs on a GPU."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from mutants import copied

pytest.importorskip("torch")

ROOT = Path(__file__).parents[1]


class Mistake(NamedTuple):
    """A text of a file below flash_numba, what takes its place, and a test that must fail."""

    path: str
    text: str
    replacement: str
    test: str
    named: str


MISTAKES = {
    "sum not rescaled": Mistake(
        "device/online_softmax.py",
        "            row_sum[i] *= rescale\n",
        "",
        "test_flash2_gpu.py",
        "test_forward_growing_scores",
    ),
    "dK not scaled": Mistake(
        "kernels/flash2_backward.py",
        "acc_dk, first_k, K.shape[1], lane, scale)",
        "acc_dk, first_k, K.shape[1], lane, types.float32(1))",
        "test_flash2_gpu.py",
        "test_backward and N113-M203-D64_64 and causalTrue and not lengths",
    ),
    "lanes of B swapped": Mistake(
        "device/swizzle.py",
        "swizzled(lane // 16 * 8 + lane % 8, lane // 8 % 2 * CHUNK, pitch)",
        "swizzled(lane // 8 % 2 * 8 + lane % 8, lane // 16 * CHUNK, pitch)",
        "test_tensor_core_gpu.py",
        "test_forward and N128-M203-D64_64",
    ),
    "gradient of lse forgotten": Mistake(
        "kernels/row_passes.py",
        "                if has_dlse:\n                    total -= dLSE[0][batch, head, row]\n"
        "                Delta[",
        "                Delta[",
        "test_tensor_core_gpu.py",
        "test_backward_any_strides_and_gradient_of_lse",
    ),
    "tensor_core's turn not awaited": Mistake(
        "device/turns.py",
        "while load_acquire(Turns, types.uint32(tile)) != turn:\n",
        "while False:\n",
        "test_tensor_core_gpu.py",
        "test_backward_repeats_bit_for_bit and 64 and True",
    ),
    "the first visit taken for the last": Mistake(
        "device/visits.py",
        "is_last = n_block == visit.start if last_first",
        "is_last = n_block == visit.stop - 1 if last_first",
        "test_tensor_core_gpu.py",
        "test_backward and N113-M203-D64_64",
    ),
    "hopper's far tile not computed again": Mistake(
        "device/late_softmax.py",
        "            if far:\n",
        "            if False:\n",
        "test_hopper_gpu.py",
        "test_growing_scores and 128",
    ),
    "hopper's diagonal not masked": Mistake(
        "kernels/hopper_walk.py",
        "(n_block >= step.full_stop)",
        "(n_block > step.full_stop)",
        "test_hopper_gpu.py",
        "test_forward and N257-M333-D64_64",
    ),
    "hopper's turn not awaited": Mistake(
        "kernels/hopper_backward_turns.py",
        "found = types.int32(load_acquire(Turns, at) == turn)",
        "found = types.int32(1)",
        "test_hopper_backward_gpu.py",
        "test_the_same_bits_every_time and 64 and True",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_texts_are_there(mistake):
    """Once, so that a mistake is what its name says when a GPU runs it."""
    assert (ROOT / "flash_numba" / mistake.path).read_text("utf-8").count(mistake.text) == 1
    assert (ROOT / "tests" / mistake.test).exists()


@pytest.mark.gpu
@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_a_kernel_fails_on_a_gpu(mistake, tmp_path):
    path = copied(ROOT, tmp_path) / "flash_numba" / mistake.path
    path.write_text(path.read_text("utf-8").replace(mistake.text, mistake.replacement), "utf-8")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += ["-p", "no:benchmark", "-m", "gpu", f"tests/{mistake.test}", "-k", mistake.named]
    # Its process is no worker of this one's pytest-xdist.
    env = {name: x for name, x in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(tmp_path), env.get("PYTHONPATH"))))
    env["FLASH_NUMBA_CACHE"] = str(tmp_path / "cache")
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200
    )
    if "skipped" in done.stdout and done.returncode == 0:
        pytest.skip("this GPU does not run that rung")
    assert done.returncode == 1, done.stdout
    assert "1 failed" in done.stdout
