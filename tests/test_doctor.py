import dataclasses
import json
import platform
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from simulator import doctor, installation, learn
from simulator.doctor import Report, examine, judge, problems
from simulator.installation import Facts, ask_driver, install_extra, look

ROOT = Path(__file__).parents[1]
VERSIONS: dict[str, str | None] = {
    "numpy": "2.4.6",
    "numba": "0.68.1",
    "numba-cuda": "0.30.4",
    "torch": "2.13.0",
    "safetensors": "0.8.0",
    "jupyterlab": "4.5.0",
    "matplotlib": "3.10.0",
    "ipywidgets": "8.1.5",
    "cuda-toolkit": "13.0.2",
}
LINUX = Facts(python="3.13.0", system="Linux x86_64", packages=VERSIONS)
H200 = dataclasses.replace(
    LINUX,
    driver="13.0",
    gpus=[{"name": "NVIDIA H200", "compute_capability": [9, 0]}],
)


def but(facts=H200, variables=None, **versions):
    packages = {**facts.packages, **{k.replace("_", "-"): v for k, v in versions.items()}}
    return dataclasses.replace(facts, packages=packages, variables=variables or {})


def launching(facts):
    (verdict,) = (verdict for verdict in judge(facts) if verdict.what.startswith("running"))
    return verdict


def test_all_is_well_on_a_good_installation():
    assert problems(H200) == []
    assert all(verdict.works and not verdict.install for verdict in judge(H200))


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (but(numpy="2.5.0"), 'numpy 2.5.0 with numba-cuda: every kernel fails .*"numpy<2.5"'),
        (but(numpy="3.0"), "numpy 3.0 with numba-cuda"),
        (but(numba="0.69.0"), 'numba 0.69.0 is newer .*"numba<0.69"'),
        (but(numba="1.0.0rc1"), "numba 1.0.0rc1 is newer"),
        (but(numba_cuda="0.31.0"), r"numba-cuda 0.31.0 .*0\.30\.\*"),
        (but(variables={"NUMBA_FORCE_CUDA_CC": "9.0"}), "NUMBA_FORCE_CUDA_CC is set: .*sm_90a"),
        (but(variables={"NUMBA_ENABLE_CUDASIM": "1"}), "NUMBA_ENABLE_CUDASIM is set"),
        (but(variables={"NUMBA_DISABLE_JIT": "1"}), "NUMBA_DISABLE_JIT is set"),
    ],
)
def test_known_bad(facts, message):
    (problem,) = problems(facts)
    assert re.search(message, problem), problem


@pytest.mark.parametrize(
    "facts",
    [
        but(numpy="2.4.99", numba="0.68.9", numba_cuda="0.30.0"),
        but(numpy="1.26.4"),
        but(numpy="2.5.0", numba_cuda=None),
        but(variables={"NUMBA_ENABLE_CUDASIM": "0"}),
        but(numpy=None, numba=None, numba_cuda=None),
    ],
)
def test_no_false_alarm(facts):
    assert problems(facts) == []


@pytest.mark.parametrize(
    ("facts", "why", "install"),
    [
        (dataclasses.replace(LINUX, no_gpu="there is no NVIDIA driver"), "no NVIDIA driver", None),
        (dataclasses.replace(LINUX, system="Darwin arm64"), "macOS has no CUDA", None),
        (but(numba_cuda=None), "numba-cuda is not installed", r"-m pip install .*\[cu13\]"),
        (
            but(dataclasses.replace(H200, driver="12.4"), numba_cuda=None),
            "numba-cuda is not",
            "cu12",
        ),
        (dataclasses.replace(H200, driver="11.8"), "driver stops at CUDA 11.8", "CUDA 12"),
        (but(numpy="2.5.1"), "numpy is too new", "numpy<2.5"),
    ],
)
def test_why_kernels_will_not_run(facts, why, install):
    verdict = launching(facts)
    assert not verdict.works
    assert why in verdict.why
    if install is None:
        assert verdict.install is None
    else:
        assert re.search(install, verdict.install or "")


def test_a_missing_toolkit_is_named_with_the_extra_that_brings_it():
    verdict = launching(but(cuda_toolkit=None))
    assert verdict.works
    assert "[cu13]" in (verdict.install or "")


@pytest.mark.parametrize(
    ("missing", "works"),
    [("jupyterlab", False), ("matplotlib", False), ("ipywidgets", False), ("notebook", True)],
)
def test_the_course_needs_what_learn_needs(monkeypatch, missing, works):
    def course(facts):
        *_, verdict = judge(facts)
        return verdict

    monkeypatch.setattr(learn, "find_spec", lambda name: VERSIONS.get(name.replace("_", "-")))
    assert learn.command()[2] == "jupyterlab"
    assert course(dataclasses.replace(H200, packages={**VERSIONS, missing: None})).works == works
    monkeypatch.setattr(
        learn, "find_spec", lambda name: None if name == missing else VERSIONS.get(name)
    )
    if works:
        assert learn.command()
    else:
        with pytest.raises(ValueError, match="jupyter" if "jupyter" in missing else missing):
            learn.command()
    other = course(but(jupyterlab=None, notebook="7.5.0"))
    assert (other.works, other.why) == (True, "notebook 7.5.0")


def test_without_numba_the_simulator_still_works():
    verdicts = judge(
        dataclasses.replace(LINUX, packages={"numpy": "2.4.6"}, no_gpu="there is none")
    )
    works = {verdict.what: verdict.works for verdict in verdicts}
    assert works.pop("simulator, step, compare")
    assert not any(works.values())
    assert all(v.install for v in verdicts if not v.works and not v.what.startswith("running"))


def test_what_to_install_goes_into_the_python_that_runs(tmp_path, monkeypatch):
    """Of a clone as editable; without one by name."""
    verdicts = judge(dataclasses.replace(H200, packages={"numpy": "2.5.0"}))
    commands = [one.install for one in verdicts if one.install]
    assert len(commands) == 5
    assert all(one.startswith(f"{sys.executable} -m pip install ") for one in commands)
    assert f'{sys.executable} -m pip install -e "{ROOT}[torch]"' in commands
    assert install_extra("torch", tmp_path) == (
        f'{sys.executable} -m pip install "flash-numba[torch]"'
    )
    monkeypatch.setattr(installation.sys, "executable", "/my venv/python")
    assert install_extra("torch").startswith('"/my venv/python" -m pip ')


def test_text_and_json_say_the_same():
    facts = but(numpy="2.5.0", torch=None, variables={"NUMBA_FORCE_CUDA_CC": "9.0"})
    report = Report(facts, problems(facts), judge(facts))
    text, found = report.text(), json.loads(json.dumps(report.to_json()))
    assert found["facts"]["packages"]["numpy"] == "2.5.0"
    assert len(found["problems"]) == 2
    for problem in found["problems"]:
        assert f"problem: {problem}" in text
    assert "NUMBA_FORCE_CUDA_CC=9.0" in text
    assert "GPU: NVIDIA H200, compute capability 9.0" in text
    assert "torch         not installed" in text
    for verdict in found["verdicts"]:
        assert f"{'works' if verdict['works'] else 'no':<6} {verdict['what']}" in text


def test_looks_at_this_machine(monkeypatch):
    monkeypatch.setenv("NUMBA_FORCE_CUDA_CC", "9.0")
    monkeypatch.delenv("NUMBA_ENABLE_CUDASIM", raising=False)
    facts = look()
    assert facts.python == platform.python_version()
    assert facts.packages["numpy"] == np.__version__
    assert facts.variables["NUMBA_FORCE_CUDA_CC"] == "9.0"
    assert "NUMBA_ENABLE_CUDASIM" not in facts.variables
    assert bool(facts.gpus) == (facts.no_gpu is None)
    assert examine().facts == facts


@pytest.mark.parametrize(
    ("probe", "seconds", "why"),
    [
        ("import os; os.abort()", 300, "asking the driver failed"),
        ("import time; time.sleep(300)", 0.5, "did not answer within 0.5 seconds"),
        ("print('nonsense')", 300, "asking the driver failed"),
    ],
)
def test_a_driver_that_crashes_or_hangs_is_a_finding(monkeypatch, probe, seconds, why):
    monkeypatch.setattr(installation.sys, "platform", "linux")
    found = ask_driver(probe, seconds)
    assert found["gpus"] == []
    assert why in found["no_gpu"]


def test_macos_is_not_asked(monkeypatch):
    monkeypatch.setattr(installation.sys, "platform", "darwin")
    assert ask_driver("raise SystemExit(1)")["no_gpu"] == "macOS has no CUDA"


def test_an_unknown_version_is_no_problem():
    assert not doctor._at_least("unknown", 2, 5)
    assert not doctor._at_least(None, 2, 5)
    assert doctor._at_least("2.10.1", 2, 5)
