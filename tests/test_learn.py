import sys
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from simulator import learn, restart
from simulator.cli import app
from simulator.installation import install_extra


def installed(monkeypatch, *names):
    known = {"matplotlib", "ipywidgets", "jupyterlab", "notebook"}
    monkeypatch.setattr(
        learn, "find_spec", lambda name: object() if name in names or name not in known else None
    )


def test_starts_the_first_notebook(monkeypatch):
    installed(monkeypatch, "matplotlib", "ipywidgets", "notebook")
    started = learn.command()
    assert started[:3] == [sys.executable, "-m", "notebook"]
    assert started[3].endswith("01_start_here.ipynb")


def test_hands_other_options_on(monkeypatch):
    installed(monkeypatch, "matplotlib", "ipywidgets", "jupyterlab")
    ran = []

    def run(command, **_):
        ran.append(command)
        return SimpleNamespace(returncode=3)

    monkeypatch.setattr(learn.subprocess, "run", run)
    result = CliRunner().invoke(app, ["learn", "--allow-root", "--port", "8890"])
    assert ran == [[*learn.command(), "--allow-root", "--port", "8890"]]
    assert result.exit_code == 3


def test_says_what_to_install(monkeypatch):
    installed(monkeypatch, "ipywidgets")
    result = CliRunner().invoke(app, ["learn"])
    assert result.exit_code == 2
    assert "the notebooks need matplotlib, jupyter" in result.output
    assert install_extra("tutorials") in result.output


def test_says_where_the_notebooks_are(tmp_path):
    with pytest.raises(ValueError, match="they come with the repository"):
        learn.command(tmp_path)


def test_tells_when_to_restart(monkeypatch):
    assert restart.restart_advice() is None
    monkeypatch.setattr("numpy.__version__", "2.5.0")
    advice = restart.restart_advice()
    assert advice is not None
    assert advice.startswith("restart the kernel, then run on from here: numpy 2.5.0 is loaded")
