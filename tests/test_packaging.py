import ast
import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]

PLATFORMS = {
    "linux": {"sys_platform": "linux", "platform_machine": "x86_64"},
    "linux-arm": {"sys_platform": "linux", "platform_machine": "aarch64"},
    "macos": {"sys_platform": "darwin", "platform_machine": "arm64"},
    "macos-intel": {"sys_platform": "darwin", "platform_machine": "x86_64"},
    "windows": {"sys_platform": "win32", "platform_machine": "AMD64"},
    "windows-arm": {"sys_platform": "win32", "platform_machine": "ARM64"},
}


def required(lines: list[str], platform: str = "linux", python: str = "3.13") -> dict:
    """Requirements by name that apply on a platform and Python."""
    environment = {
        **default_environment(),
        **PLATFORMS[platform],
        "python_version": python,
        "platform_python_implementation": "CPython",
        "extra": "",
    }
    requirements = [Requirement(line) for line in lines]
    return {
        canonicalize_name(one.name): one
        for one in requirements
        if one.marker is None or one.marker.evaluate(environment)
    }


def conda_requirements() -> dict:
    lines = [line for line in CONDA if isinstance(line, str)]
    (pip,) = (line["pip"] for line in CONDA if isinstance(line, dict))
    lines += [line for line in pip if not line.startswith("-")]
    return required(lines)


def test_environment_yml_agrees_with_pyproject():
    lines = PROJECT["dependencies"] + [
        line for extra in ("tutorials", "safetensors", "dev") for line in EXTRAS[extra]
    ]
    here = {name: one.specifier for name, one in required(lines).items()}
    there = {name: one.specifier for name, one in conda_requirements().items()}
    python = there.pop("python")
    del there["pip"]
    assert there == here
    low, high = PROJECT["requires-python"], "<3.15"
    assert {str(part) for part in python} == {low, high}


def test_pins_hold_off_the_known_bad_versions():
    pins = required(PROJECT["dependencies"])
    assert "2.4.6" in pins["numpy"].specifier
    assert "2.5.0" not in pins["numpy"].specifier
    assert "0.68.1" in pins["numba"].specifier
    assert "0.69.0" not in pins["numba"].specifier
    assert str(pins["numba-cuda"].specifier) == "==0.30.*"


@pytest.mark.parametrize(
    ("platform", "python", "expected"),
    [
        ("linux", "3.11", {"numba", "numba-cuda"}),
        ("linux", "3.14", {"numba", "numba-cuda"}),
        ("linux", "3.15", {"numba"}),
        ("linux", "3.16", set()),
        ("linux-arm", "3.13", {"numba", "numba-cuda"}),
        ("macos", "3.13", {"numba"}),
        ("macos-intel", "3.13", set()),
        ("windows", "3.13", {"numba", "numba-cuda"}),
        ("windows-arm", "3.13", set()),
    ],
)
def test_what_each_platform_installs(platform, python, expected):
    names = set(required(PROJECT["dependencies"], platform, python))
    assert names & {"numba", "numba-cuda"} == expected
    assert {"numpy", "ml-dtypes", "rich", "textual", "typer"} <= names


def test_default_install_brings_no_cuda_toolkit():
    assert not any(one.extras for one in required(PROJECT["dependencies"]).values())
    try:
        lines = importlib.metadata.requires("numba-cuda") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("numba-cuda is not installed here")
    plain = [name for name in required(lines) if re.match("nvidia|cuda-toolkit", name)]
    assert plain == []
    assert {"cu12", "cu13"} <= set(
        importlib.metadata.metadata("numba-cuda").get_all("Provides-Extra") or []
    )


def test_ci_holds_torch_to_one_release():
    (line,) = (ROOT / ".ci" / "constraints.txt").read_text().split()
    assert line == "torch==2.13.0"
    assert "2.13.0" in required(EXTRAS["torch"])["torch"].specifier
    assert "REQUIRE_TORCH=1" in (ROOT / ".ci" / "run").read_text()


# An environment without some packages, made in a process of its own: it refuses to import those
# that its first argument names.
BLOCK = """
import importlib.abc, sys

blocked = sys.argv.pop(1).split(",")

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in blocked:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Refuse())
"""

# Imports every module of the packages that it is given, less those under the folders that need
# numba to exist.
IMPORT_ALL = """
import importlib, pkgutil

packages, left_out = (argument.split(",") for argument in sys.argv[1:])

def import_tree(name):
    if name in left_out or name.endswith("__main__"):
        return
    module = importlib.import_module(name)
    print(name)
    for found in pkgutil.iter_modules(getattr(module, "__path__", []), name + "."):
        import_tree(found.name)

for package in packages:
    import_tree(package)
drivers = ("numba.cuda", "numba_cuda", "cuda.", "cupy", "torch")
touched = sorted(name for name in sys.modules if name.startswith(drivers))
assert not touched, f"imports loaded {touched}"
"""
NEED_NUMBA = "flash_numba.kernels,flash_numba.device,flash_numba.launch,flash_numba.packing"
NEED_NUMBA += ",flash_numba.interop"
NO_NUMBA, PLAIN_NUMBA = "numba,numba_cuda,cuda", "numba_cuda,cuda"
without_cuda = pytest.mark.parametrize("blocked", [NO_NUMBA, PLAIN_NUMBA], ids=["none", "plain"])


def run_without(blocked: str, code: str, *arguments: str) -> str:
    """What a program prints where some packages are missing, and GPUs too."""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", BLOCK + code, blocked, *arguments],
        capture_output=True,
        cwd=ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONIOENCODING": "utf-8"},
        encoding="utf-8",
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize(
    ("blocked", "package", "left_out"),
    [
        (NO_NUMBA, "flash_numba", NEED_NUMBA),
        (NO_NUMBA, "simulator", "none"),
        (PLAIN_NUMBA, "simulator", "none"),
        ("none", "flash_numba", NEED_NUMBA),
        ("none", "simulator", "none"),
    ],
)
def test_imports_need_no_numba_and_touch_no_gpu(blocked, package, left_out):
    assert package in run_without(blocked, IMPORT_ALL, package, left_out).split()


def test_kernels_import_and_trace_with_plain_numba(tmp_path):
    kernel = "from numba import cuda\n\n\n@cuda.jit\ndef double(x):\n    x[cuda.threadIdx.x] *= 2\n"
    (tmp_path / "mine.py").write_text(kernel)
    code = """
import importlib.util
# numba-cuda puts itself in the place of numba.cuda through this finder.
sys.meta_path[:] = [one for one in sys.meta_path if "redirector" not in type(one).__module__]
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in blocked else find(name, *rest)

import numpy as np
from flash_numba.device.numba_cuda import NUMBA_CUDA
from flash_numba.kernels import flash1, flash2, flash2_backward, standard
from simulator.threads import trace
sys.path.append(sys.argv[1])
from mine import double

x = np.arange(4.0)
trace(double)[1, 4](x)
print(NUMBA_CUDA, x)
"""
    assert run_without(PLAIN_NUMBA, code, str(tmp_path)) == "False [0. 2. 4. 6.]\n"


@without_cuda
@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("compare --seqlen 64", "flash2 moves"),
        ("step --demo", "flash2 moves"),
        ("step --seqlen 40 --direction backward --plain", "equal"),
        ("doctor", "works  simulator, step, compare"),
    ],
)
def test_commands_run_without_numba_cuda(blocked, command, says):
    code = "from simulator.cli import main\nmain()"
    assert says in " ".join(run_without(blocked, code, *command.split()).split("\n"))


@without_cuda
def test_attention_is_answered_without_numba_cuda(blocked):
    code = """
import warnings
import numpy as np
from flash_numba import explain, flash_attention
q = np.ones((1, 5, 2, 4), np.float32)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    assert np.allclose(flash_attention(q, q, q, causal=True), 1)
print(*(str(warning.message) for warning in said))
print(explain(q, q, q))
"""
    first, second, *_ = run_without(blocked, code).splitlines()
    assert first.startswith("no CUDA GPU: ")
    assert first.endswith("the tile simulator answers, which is right but slow (said once)")
    assert second.startswith("flash2 runs on the tile simulator (no CUDA GPU: ")


def imported(tree: ast.AST) -> list[tuple[str, ast.stmt]]:
    """Dotted names that a syntax tree imports, relative ones with their dots, and the statement."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [(alias.name, node) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            names += [(f"{base}.{alias.name}", node) for alias in node.names]
    return names


def offences(folder: Path, forbidden: str, allowed_inside_functions_of: Path | None = None) -> list:
    found = []
    for path in sorted(folder.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        inside_functions = {
            statement
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef)
            for statement in ast.walk(function)
        }
        for name, statement in imported(tree):
            permitted = path == allowed_inside_functions_of and statement in inside_functions
            if re.match(forbidden, name) and not permitted:
                found.append(f"{path.relative_to(ROOT)}:{statement.lineno} imports {name}")
    return found


def test_flash_numba_imports_nothing_from_simulator():
    package = ROOT / "flash_numba"
    assert offences(package, r"simulator(\.|$)", package / "attention.py") == []


def test_simulator_imports_kernels_in_threads_only():
    kernels = r"flash_numba\.(kernels|device|launch)(\.|$)"
    outside = [
        line
        for line in offences(ROOT / "simulator", kernels)
        if not line.startswith("simulator/threads")
    ]
    assert outside == []


def test_the_import_check_sees_what_it_should(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    (tmp_path / "attention.py").write_text("import simulator.cli\ndef f():\n    import simulator\n")
    (tmp_path / "other.py").write_text("def f():\n    from simulator import memory\n")
    assert offences(tmp_path, r"simulator(\.|$)", tmp_path / "attention.py") == [
        "attention.py:1 imports simulator.cli",
        "other.py:2 imports simulator.memory",
    ]


def test_types_hold_without_torch(tmp_path):
    """`make test` installs none: its type checker knows nothing of what torch's decorators make."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path], check=True)
    (packages,) = tmp_path.glob("lib/python*/site-packages")
    (installed,) = (Path(one) for one in sys.path if Path(one, "numpy").is_dir())
    for one in installed.iterdir():
        if not one.name.startswith(("torch", "functorch")):
            (packages / one.name).symlink_to(one)
    command = [sys.executable, "-m", "pyright", "--pythonpath", tmp_path / "bin/python"]
    found = subprocess.run(
        [*command, "--level", "error", ROOT / "flash_numba/interop"], capture_output=True, text=True
    )
    assert "0 errors" in found.stdout, found.stdout


def test_wheel_ships_the_data_and_both_packages(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    subprocess.run([*build, "--directory", tmp_path], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {
        "flash_numba/__init__.py",
        "flash_numba/py.typed",
        "simulator/py.typed",
        "simulator/data/minilm_layer.npz",
        "simulator/data/README.md",
    } <= names
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"flash_numba", "simulator"}
