import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from simulator.cli import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CODE = "\n".join(
    path.read_text(encoding="utf-8")
    for package in ("flash_numba", "simulator")
    for path in sorted((ROOT / package).rglob("*.py"))
)


def section(title: str) -> str:
    return README.split(f"## {title}\n")[1].split("\n## ")[0]


def test_the_example_prints_what_it_says(tmp_path):
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (output,) = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
    run = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            "-c",
            f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{example}",
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == output
    statements = [line for line in example.splitlines() if line and "import" not in line]
    assert len(statements) <= 10


def test_files_in_reading_order_exist():
    paths = re.findall(r"`([\w/]+\.(?:py|md))`", README)
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).is_file()] == []
    assert [
        link for link in re.findall(r"\]\(([^)h#]+)\)", README) if not (ROOT / link).is_file()
    ] == []


def test_names_of_the_table_are_names_of_the_code():
    rows = section("Names in the papers and here").split("|---|---|---|\n")[1].split("\n\n")[0]
    names = [
        name for row in rows.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[2])
    ]
    assert len(names) > 12
    assert [name for name in names if not re.search(rf"\b{name}\b", CODE)] == []


def test_commands_exist():
    targets = re.findall(r"^make (\w+)", README, re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text()
    assert targets == ["demo", "test"]
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
    commands = getattr(get_command(app), "commands")  # noqa: B009 - typer may bring its own click
    named = set(re.findall(r"`flash-numba (\w+)", README))
    assert named <= set(commands)
    options = {name for one in commands["compare"].params for name in one.opts}
    assert set(re.findall(r"(?<= |`)--[\w-]+", README)) <= options


@pytest.mark.parametrize("extra", ["", "--tile-m 16"])
def test_what_it_says_of_small_tiles(extra):
    (suggested,) = re.findall(r"`flash-numba (compare --seqlen [^`]*)`", README)
    run = subprocess.run(
        [sys.executable, "-m", "simulator.cli", *suggested.split(), *extra.split()],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    text = " ".join(run.stdout.split())
    assert "DIFFERS" not in text
    (sentence,) = re.findall(r"flash2 moves [^:]*:", text)
    assert ("more, not less" in sentence) == bool(extra)
