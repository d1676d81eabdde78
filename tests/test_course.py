"""What the course promises to teach and to draw is there."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from flash_numba.problem import Problem
from simulator.claims import CLAIMS
from simulator.course import record, stepper
from simulator.course.sharing import sent_bytes
from simulator.inputs import random_input

ROOT = Path(__file__).parents[1]
TUTORIALS = ROOT / "tutorials"
README = (TUTORIALS / "README.md").read_text(encoding="utf-8")
NOTEBOOKS = {int(path.stem[:2]): path for path in sorted(TUTORIALS.glob("*.ipynb"))}

TOPICS = (
    *("attention basics", "challenges", "bottlenecks", "principles", "tiling", "recomputation"),
    *("implementation", "benchmarks", "training language models", "integration"),
    *("hyperparameters", "variable lengths", "distributed", "constraints", "research", "hardware"),
)
"""Whatever else changes, these have a place in the course."""

ORDER = (
    *("start", "compute", "count", "softmax", "tile", "backward", "choose", "cuda", "ladder"),
    *("tensor_cores", "hopper", "mask", "precision", "measure", "gpt", "folklore"),
)
"""What the notebooks are about, in the order in which one can follow them."""


def rows(title: str) -> list[list[str]]:
    """Cells of the table below a title of the course's README."""
    part = README.split(f"## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def code(number: int) -> str:
    cells = json.loads(NOTEBOOKS[number].read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def test_order():
    assert len(NOTEBOOKS) == len(ORDER)
    for path, word in zip(NOTEBOOKS.values(), ORDER, strict=True):
        assert word in path.stem


@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic_has_its_place(topic):
    (place,) = [place for name, place in rows("Where a topic is taught") if name.startswith(topic)]
    taught = re.sub(r"\([^)]*\)", "", place)
    numbers = [int(number) for number in re.findall(r"\d+", taught)]
    assert numbers
    assert set(numbers) <= NOTEBOOKS.keys()
    for claim in re.findall(r"\bC\d\d\b", place):
        assert claim in CLAIMS


def test_no_notebook_is_left_out():
    places = " ".join(re.sub(r"\([^)]*\)", "", row[1]) for row in rows("Where a topic is taught"))
    spans = re.findall(r"(\d+) to (\d+)", places)
    named = {n for a, b in spans for n in range(int(a), int(b) + 1)}
    assert named | {int(number) for number in re.findall(r"\d+", places)} == NOTEBOOKS.keys()


@pytest.mark.parametrize("number", range(1, 14))
def test_a_diagram_is_drawn_where_the_table_says(number):
    ((_, _, places, by),) = [row for row in rows("Pictures") if row[0] == f"D{number}"]
    function = by.strip("`")
    course = "\n".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "simulator" / "course").glob("*.py")
    )
    assert re.search(rf'def {function}\([^"]*?"""D{number}: ', course)
    for place in places.split(", "):
        notebook = json.loads(NOTEBOOKS[int(place)].read_text(encoding="utf-8"))
        drawn = [cell for cell in notebook["cells"] if f"*{function}(" in "".join(cell["source"])]
        assert any(
            "image/png" in output.get("data", {}) for cell in drawn for output in cell["outputs"]
        )


def test_measured_points_stand_where_their_kernels_tiles_put_them():
    """Intensity is that of the tiles that flash2's kernels take on that GPU."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("numba")
    from flash_numba.kernels.spec import flash2_tiles
    from simulator.course.limits import measured_roof
    from simulator.hardware import H200
    from simulator.theory import counts

    tiles = {
        ("forward", 64): (128, 64), ("forward", 128): (128, 32),
        ("backward", 64): (32, 128), ("backward", 128): (64, 128),
    }  # fmt: skip
    rows = [
        {"direction": direction, "head_dim": d, "seqlen": 1024, "causal": False, "batch": 1}
        | {"heads": 1, "ms": 1.0}
        for direction, d in tiles
    ]
    figure, text = measured_roof(H200, rows, "somewhere", flash2_tiles)
    for row, line in zip(rows, figure.axes[0].lines[1:], strict=True):
        direction, d = row["direction"], row["head_dim"]
        problem = Problem(1024, 1024, d)
        assert flash2_tiles(H200, problem, direction) == tiles[direction, d]
        found = counts("flash2", problem, *tiles[direction, d], direction=direction)
        assert line.get_xdata() == pytest.approx([found.matmul_flops / found.hbm_bytes])
        assert f"{direction}, d={d}, {tiles[direction, d][0]}x{tiles[direction, d][1]}" in text


def test_a_slider_shows_the_event_that_it_points_to(monkeypatch):
    pytest.importorskip("ipywidgets")
    display = pytest.importorskip("IPython.display")
    shown: list = []
    monkeypatch.setattr(display, "display", shown.append)
    small = Problem(32, 32, 8)
    run = record("flash2", small, *random_input(small), tile_m=16, tile_n=16)
    stepper(run)
    ((slider, text),) = [box.children for box in shown]
    assert slider.max == len(run) - 1
    seen = {}
    for event in (0, len(run) // 2, len(run) - 1):
        slider.value = event
        assert f"event {event}/{len(run) - 1}" in text.value
        seen[event] = text.value
    assert len(set(seen.values())) == 3


def summed_in_a_ring(parts: np.ndarray) -> tuple[np.ndarray, int]:
    """Sums of the rows of `parts`, one a GPU and as long as there are GPUs, and what each sends."""
    gpus, held, sent = len(parts), parts.copy(), 0
    for adding in (True, False):
        for turn in range(gpus - 1):
            before = held.copy()
            for gpu in range(gpus):
                chunk = (gpu - turn + (not adding)) % gpus
                there = held[(gpu + 1) % gpus]
                there[chunk] = there[chunk] * adding + before[gpu, chunk]
            sent += 1
    return held, sent


def test_what_is_sent_is_counted_hop_by_hop():
    gpus, N, width, layers = 4, 96, 10, 8
    parts = np.random.default_rng(0).integers(9, size=(gpus, gpus))
    held, hops = summed_in_a_ring(parts)
    assert (held == parts.sum(axis=0)).all()
    share = hops / gpus  # of what is summed, sent by each
    found = sent_bytes(gpus, N, width, layers)
    assert found["data"] == 2 * share * 4 * width * width
    assert found["tensor"] == 2 * (share * gpus * N * width) * 2

    places, seen, hops = list(range(gpus)), [set() for _ in range(gpus)], 0
    while True:  # K of each GPU's tokens goes around, with the dK that grows
        for keys, place in enumerate(places):
            seen[keys].add(place)
        if all(len(one) == gpus for one in seen):
            break
        places, hops = [(place + 1) % gpus for place in places], hops + 1
    home = hops + 1  # where dK is wanted
    assert [(place + 1) % gpus for place in places] == list(range(gpus))
    chunk = N * width  # a GPU's tokens of `gpus` sequences
    assert found["sequence"] == 2 * chunk * (2 * hops + 2 * hops + 2 * home)

    stages = gpus - 1
    between = stages * 2 * gpus * N * width * 2  # X and dX, all GPUs and layers
    assert found["pipeline"] * layers / gpus * stages == between


def test_notebooks_copy_no_kernel():
    """What a notebook defines is its own: no function of the packages is written there anew."""
    packages = [path for name in ("flash_numba", "simulator") for path in (ROOT / name).rglob("*")]
    lines = {
        line.strip()
        for path in packages
        if path.suffix == ".py"
        for line in path.read_text(encoding="utf-8").splitlines()
        if len(line.strip()) > 40 and not line.strip().startswith(("from ", "import "))
    }
    for number in NOTEBOOKS:
        run = longest = 0
        for line in code(number).splitlines():
            run = run + 1 if line.strip() in lines else 0
            longest = max(longest, run)
        assert longest < 4, f"notebook {number} repeats {longest} lines of the packages"
