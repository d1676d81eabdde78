"""The notebooks are those of their sources, complete, accessible, and run as they are shown."""

import ast
import html
import importlib.util
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from flash_numba.ladder import NoGpu, find_gpu

ROOT = Path(__file__).parents[1]
TUTORIALS = ROOT / "tutorials"
MOST_CELLS = 25
MOST_SECONDS = 60
"""Of processor time, whatever else the machine does; all sixteen together take less."""


def load_script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MAKE = load_script("make_notebooks")
NAMES = MAKE.names()


def stored(name: str) -> dict:
    return json.loads((TUTORIALS / f"{name}.ipynb").read_text(encoding="utf-8"))


def outputs(notebook: dict) -> list[dict]:
    return [one for cell in notebook["cells"] for one in cell.get("outputs", ())]


def test_there_are_notebooks_in_order():
    assert [name[:2] for name in NAMES] == [f"{i:02}" for i in range(1, len(NAMES) + 1)]
    assert sorted(path.stem for path in TUTORIALS.glob("*.ipynb")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_cells_are_those_of_the_source(name):
    made, kept = MAKE.notebook(name), stored(name)
    assert len(made["cells"]) <= MOST_CELLS
    for mine, theirs in zip(made["cells"], kept["cells"], strict=True):
        assert "".join(theirs["source"]) == mine["source"], "run scripts/make_notebooks.py"
        assert theirs["cell_type"] == mine["cell_type"]
    numbers = [cell["execution_count"] for cell in kept["cells"] if cell["cell_type"] == "code"]
    assert numbers == list(range(1, len(numbers) + 1))
    assert not any(one["output_type"] == "error" for one in outputs(kept))


@pytest.mark.parametrize("name", NAMES)
def test_opens_and_closes_as_promised(name):
    made = MAKE.notebook(name)["cells"]
    cells = [cell["source"] for cell in made]
    assert re.match(rf"# {int(name[:2])} · ", cells[0])
    for words in ("**You will**", "**You will learn**", "**You need**"):
        assert words in cells[0], words
    assert re.search(r'^ +%pip install --quiet -e "\.\.\[tutorials', cells[1], re.MULTILINE)
    assert "Exercise" in "\n".join(cells)
    assert "## Further reading" in cells[-1]
    text = "\n".join(cells)
    assert "**Predict.**" in text
    assert "**Change it.**" in text
    assert "inspect.getsource(" in text or "## Read a real kernel" in text
    prose = "\n".join(cell["source"] for cell in made if cell["cell_type"] == "markdown")
    code = "\n".join(cell["source"] for cell in made if cell["cell_type"] == "code")
    assert not re.search(r"(?i)#.*\bpredict\b", code), "a question belongs into the text"
    for link in re.findall(r"\]\(([^)]+)\)", prose):
        assert link.startswith("https://") or (TUTORIALS / link).is_file(), link
    for path in re.findall(
        r"`((?:simulator|flash_numba|docs|benchmarks|tutorials)/[\w/.]+)`", text
    ):
        assert (ROOT / path).exists(), path


def test_outputs_are_settled():
    def stream(name, text):
        return {"output_type": "stream", "name": name, "text": text}

    widget = {"data": {MAKE.WIDGET: {"model_id": "1"}, "text/plain": "VBox()"}, "output_type": "x"}
    parts = [stream("stdout", "a"), stream("stdout", "b"), widget, stream("stderr", "c")]
    texts = ["ab", MAKE.IN_A_LIVE_NOTEBOOK, "c"]
    assert [one.get("text") or one["data"]["text/plain"] for one in MAKE.settled(parts)] == texts
    for name in NAMES:
        for cell in stored(name)["cells"]:
            assert len(cell.get("outputs", ())) == len(MAKE.settled(cell.get("outputs", [])))
            assert MAKE.WIDGET not in json.dumps(cell)


@pytest.mark.parametrize("name", NAMES)
def test_pictures_have_text(name):
    kept = stored(name)
    for one in outputs(kept):
        if "image/png" in one.get("data", {}):
            alternative = one["metadata"]["image/png"]["alt"]
            assert len(alternative) > 60, alternative
    shown = json.dumps(kept)
    assert not re.search(r"/(home|root|tmp|work|Users)/", shown)
    assert len(shown) < 400_000


RECORDS = {"results", "measured", "measured_steps", "measured_roof"}
"""Functions that give, or draw, what was measured on a GPU."""


def shows_records(source: str, known: set[str]) -> bool:
    """Whether a cell makes use of a record; names that hold such go into `known`, or leave it."""
    shown = False
    for statement in ast.parse(re.sub(r"^(\s*)%.*", r"\1pass", source, flags=re.MULTILINE)).body:
        nodes = list(ast.walk(statement))
        names = [node for node in nodes if isinstance(node, ast.Name)]
        stored = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        calls = [node.func for node in nodes if isinstance(node, ast.Call)]
        called = {getattr(func, "attr", getattr(func, "id", None)) for func in calls}
        used = bool(called & RECORDS or ({node.id for node in names} - stored) & known)
        known.difference_update(stored)
        if used:
            known.update(stored)
        shown |= used
    return shown


def printed(cell: dict) -> str:
    streams = [one for one in cell["outputs"] if one["output_type"] == "stream"]
    return "".join("".join(one["text"]) for one in streams)


@pytest.mark.parametrize("name", NAMES)
def test_cells_that_show_a_record_print_gpu_and_date(name):
    known: set[str] = set()
    shown = 0
    for cell in stored(name)["cells"]:
        if cell["cell_type"] == "code" and shows_records("".join(cell["source"]), known):
            text = printed(cell)
            assert re.search(r"NVIDIA \w+\b", text), cell["source"]
            assert re.search(r"\b20\d\d-\d\d-\d\d\b", text), cell["source"]
            shown += 1
    expected = {"07": 1, "08": 1, "09": 1, "10": 1, "11": 1, "12": 1, "14": 8, "15": 1}
    assert shown == expected.get(name[:2], 0)


def test_the_last_notebook_shows_every_claim_in_full():
    """As text, and in HTML: the exact statement, the measurement and the verdict of each row."""
    from simulator.claims import ledger

    cells = stored(NAMES[-1])["cells"]
    shown = {
        kind: "".join(
            "".join(one["data"][kind])
            for cell in cells
            for one in cell.get("outputs", ())
            if kind in one.get("data", {})
        )
        for kind in ("text/plain", "text/html")
    }
    told = {}
    for part in re.split(r"^(?=[CM]\d\d  )", shown["text/plain"], flags=re.MULTILINE)[1:]:
        told[part[:3]] = settled_numbers(part)
    page = settled_numbers(html.unescape(shown["text/html"]))
    for claim, found in ledger():
        assert settled_numbers(f"{found.verdict.upper()}: {found.exact}") in told[claim.name]
        assert settled_numbers(found.measured) in told[claim.name]
        between = '</td><td style="text-align: left">'
        row = between.join((claim.text, found.verdict, found.exact, found.measured))
        assert settled_numbers(row) in page
    assert {f"C{number:02}" for number in range(1, 96)} <= told.keys()


def settled_numbers(text: str) -> str:
    return re.sub(r"\d(\.\d+)?e-\d+", "#", text)  # rounding errors


def test_every_puzzle_is_set_and_solved():
    from simulator.grade import PUZZLES

    sources = "\n".join(path.read_text(encoding="utf-8") for path in MAKE.SOURCES.glob("*.py"))
    solutions = {path.stem for path in (TUTORIALS / "solutions").glob("*.py")}
    assert solutions == set(PUZZLES)
    assert [name for name in PUZZLES if f'"{name}"' not in sources] == []


def texts(notebook: dict) -> list[str]:
    """What each cell prints and gives, without what differs from run to run."""
    found = []
    for cell in notebook["cells"]:
        parts = []
        for one in cell.get("outputs", ()):
            if one["output_type"] == "stream":
                parts.append("".join(one["text"]))
            else:
                parts.append("".join(one["data"]["text/plain"]))
        text = "".join(parts)
        found.append(settled_numbers(text))
    return found


@pytest.mark.notebooks
@pytest.mark.parametrize("name", NAMES)
def test_runs_as_shown(name, monkeypatch):
    for package in ("nbclient", "ipykernel", "matplotlib", "ipywidgets"):
        pytest.importorskip(package)
    source = (MAKE.SOURCES / f"{name}.py").read_text(encoding="utf-8")
    if re.search(r"^(import|from) torch\b", source, re.MULTILINE):
        pytest.importorskip("torch")
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    monkeypatch.setenv("PYTHONPATH", path)
    before = os.times()
    made = MAKE.run(name)
    after = os.times()
    if isinstance(find_gpu(), NoGpu):  # with one, some cells measure
        for now, then in zip(texts(made), texts(stored(name)), strict=True):
            assert now == then
    taken = after.children_user + after.children_system
    taken -= before.children_user + before.children_system
    assert taken < MOST_SECONDS, f"{taken:.0f} s of a processor"
