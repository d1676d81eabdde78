"""The first cell of every notebook on a machine that came with packages of its own."""

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from simulator import restart
from simulator.doctor import examine

TUTORIALS = Path(__file__).parents[1] / "tutorials"
NOTEBOOKS = sorted(TUTORIALS.glob("*.ipynb"))
OLD = {"numpy": "1.25.2", "numba": "0.60.0", "matplotlib": "3.8.0"}
FITTING = {"numpy": "2.0.2", "numba": "0.65.0", "numba-cuda": "0.30.4", "matplotlib": "3.10.0"}
FITTING |= {"ml_dtypes": "0.5.1", "greenlet": "3.2.0", "platformdirs": "4.3.6", "rich": "14.0.0"}
FITTING |= {"textual": "8.0.0", "typer": "0.20.0", "ipywidgets": "8.1.5", "torch": "2.8.0"}


@pytest.fixture
def machine(monkeypatch):
    """What pip knows; `hosted` fills it in."""
    table: dict[str, str] = {}

    def version(name):
        if name not in table:
            raise importlib.metadata.PackageNotFoundError(name)
        return table[name]

    monkeypatch.setattr(restart.importlib.metadata, "version", version)
    return table


def hosted(machine, monkeypatch, installed, loaded, after):
    """Run a notebook's first cell; `after` is what pip would leave. The lines given to pip."""
    machine.update(installed)
    for name in restart.WATCHED:
        known = {"__version__": loaded[name]} if name in loaded else {}
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**known))
    asked: list[str] = []

    def run_line_magic(magic, line):
        asked.append(f"{magic} {line}")
        machine.clear()
        machine.update(after)

    def cell(notebook):
        from IPython.core.inputtransformer2 import TransformerManager

        source = "".join(json.loads(notebook.read_text(encoding="utf-8"))["cells"][1]["source"])
        first = source[: source.index("stop_if_stale()\n") + len("stop_if_stale()\n")]
        shell = SimpleNamespace(run_line_magic=run_line_magic)
        monkeypatch.chdir(TUTORIALS)
        monkeypatch.setattr(sys, "path", list(sys.path))
        exec(TransformerManager().transform_cell(first), {"get_ipython": lambda: shell})
        return asked

    return cell


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_fitting_machine_is_left_alone(machine, monkeypatch, notebook):
    pytest.importorskip("IPython")
    loaded = {"numpy": "2.0.2"}
    assert hosted(machine, monkeypatch, FITTING, loaded, {})(notebook) == []


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_an_older_numpy_that_is_loaded_and_replaced_stops_it(machine, monkeypatch, notebook):
    pytest.importorskip("IPython")
    cell = hosted(machine, monkeypatch, OLD, {"numpy": "1.25.2"}, FITTING)
    with pytest.raises(
        RuntimeError, match=r"restart the kernel.*numpy 1\.25\.2 is loaded and 2\.0\.2 installed"
    ):
        cell(notebook)
    assert examine().problems[-1].startswith("restart the kernel")


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_missing_is_installed_beside_a_numpy_that_fits(
    machine, monkeypatch, notebook, capsys
):
    """Editable, so that the clone stays what is imported; what is large is told before."""
    pytest.importorskip("IPython")
    extras = "tutorials,torch" if "gpt" in notebook.stem else "tutorials"
    cell = hosted(machine, monkeypatch, {"numpy": "2.0.2"}, {"numpy": "2.0.2"}, FITTING)
    assert cell(notebook) == [f'pip install --quiet -e "..[{extras}]"']
    said = capsys.readouterr().out
    assert said.startswith("installs ")
    assert "matplotlib<4,>=3.9" in said
    assert ("PyTorch, some GB" in said) == ("torch" in extras)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_alone_says_what_to_bring(tmp_path, notebook):
    source = "".join(json.loads(notebook.read_text(encoding="utf-8"))["cells"][1]["source"])
    first = source[: source.index("if names := missing(")]
    run = [sys.executable, "-I", "-S", "-c", first]
    asked = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert asked.returncode == 1
    last = asked.stderr.splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: this notebook needs the whole repository")
    assert "`git clone`" in last
    assert "During handling" not in asked.stderr
    beside = subprocess.run(run, cwd=TUTORIALS, capture_output=True, text=True, check=False)
    assert beside.returncode == 0, beside.stderr


def test_what_is_missing_is_named(machine):
    machine.update(FITTING)
    assert restart.missing("tutorials", "torch") == []
    machine["numpy"] = "2.5.0"
    del machine["matplotlib"]
    machine["numba"] = "0.60.0"
    names = [one.partition("<")[0] for one in restart.missing("tutorials")]
    assert names == (["numpy", "numba", "matplotlib"] if sys.version_info < (3, 15) else names)


def test_a_new_kernel_has_nothing_to_restart():
    restart.stop_if_stale()
