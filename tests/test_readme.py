import importlib
import json
import re
import runpy
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from typer.main import get_command

from flash_numba.kernels.steps import STEPS
from simulator.bench import results
from simulator.cli import app
from simulator.grade import PUZZLES
from simulator.viewer import align, breakpoints, sources
from simulator.viewer.frame import frame
from simulator.viewer.moment import Moment, View

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CODE = "\n".join(
    path.read_text(encoding="utf-8")
    for package in ("flash_numba", "simulator")
    for path in sorted((ROOT / package).rglob("*.py"))
)


def section(title: str) -> str:
    return README.split(f"## {title}\n")[1].split("\n## ")[0]


def shown(path: Path) -> tuple[str, list[float]]:
    """What a picture says: its words, and its numbers with a decimal point."""
    root = ElementTree.parse(path).getroot()
    texts = root.iter("{http://www.w3.org/2000/svg}text")
    text = " ".join(" ".join("".join(one.itertext()) for one in texts).split())
    number = r"-?\d*\.\d+"
    words = " ".join(re.sub(number, "#", text).split())
    return words, [float(found) for found in re.findall(number, text)]


def test_the_picture_is_what_its_command_exports(tmp_path):
    ((_, path),) = re.findall(r"!\[([^\]]*)\]\(([^)]*)\)", README)
    (command,) = re.findall(rf"`flash-numba (step .*--export {path})`", README)
    arguments = command.replace(path, str(tmp_path / "now.svg")).split()
    run = [sys.executable, "-m", "simulator.cli", *arguments]
    subprocess.run(run, cwd=ROOT, check=True, capture_output=True)
    (words, numbers), (now, numbers_now) = shown(ROOT / path), shown(tmp_path / "now.svg")
    assert "HBM elements" in words
    assert words == now
    # Sums of fp32 products in another order; three digits are printed at least.
    assert numbers == pytest.approx(numbers_now, rel=1e-3)
    assert all(mark in words for mark in "■◆□◇·◈"), "every state of a tile"
    assert "equal ✓" in words
    assert re.search(r"rescale e\^# = #", words), "a rescale that one sees"


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
    assert named == set(commands)
    assert re.findall(r"^\| `flash-numba (\w+)", README, re.MULTILINE) == list(commands)
    both = (commands[name] for name in ("compare", "step", "bench"))
    options = {name for one in both for param in one.params for name in param.opts}
    others = {"--help", "--allow-root"}  # the latter is Jupyter's, which `learn` hands on
    assert set(re.findall(r"(?<= |`)--[\w-]+", README)) <= options | others


def test_five_minutes_say_what_the_stepper_shows():
    told = " ".join(section("The stepper in five minutes").split())
    source = demo_session()
    replay = source.run("flash2", "forward", 9).replay

    def text(place, **view):
        moment = Moment(replay, breakpoints.place(place, replay), View(**view))
        return frame(moment, 80, 24).plain

    first = text(f"event {replay.steps.stops[0]}")
    assert "tile 1/19" in told
    assert "tile 1/19" in first
    assert "read 2,048 elements" in told
    assert re.search(r"this tile +2,048 +0  K V", first)
    assert "of row 161 rises" in told
    assert "old - new maximum) = 0.0987" in told
    assert re.search(r"row 161 .*\n.*rescale e\^-2.32 = 0.0987", text("2,4"))
    assert "was read 2.9 times" in told
    flash1 = source.run("flash1", "forward", 9).replay
    beside = frame(Moment(flash1, breakpoints.place("2,4", flash1), View()), 80, 24).plain
    divided, O = (
        re.findall(r"→ +(\S+)(?: +[-.\d]+){3} ", one)[-1] for one in (beside, text("2,4"))
    )
    (row_sum,) = re.findall(r"row_sum .*→ (\S+) =", text("2,4"))
    assert f"{float(divided):.3f} = {float(O):.3f} / {float(row_sum):.3f}" in told
    end = text("end", tensors=True)
    assert re.search(r"K +18,880 +2\.9", end)
    assert re.search(r"V +18,880 +2\.9", end)
    assert re.search(r"Q +6,592 +1\.0", end)
    assert "more than 8.0 of 227 KiB" in told
    assert "most at once so far 8.0 KiB" in text("end")
    assert "of 227 KiB" in end
    assert "OUTPUTS DIFFER" in difference_at_the_end(source)


def demo_session():
    options = {**sources.DEMO, "dtype": None}
    return sources.session(None, True, {}, options, None, None)


def difference_at_the_end(source) -> str:
    runs = (source.run(name, "forward", 9).replay for name in ("flash2_without_rescale", "flash2"))
    text = align.difference(*(Moment(run, len(run) - 1) for run in runs))
    assert text is not None
    return text


def test_kernel_figures_are_those_measured():
    told = section("The kernels").partition("Tests on a GPU")[0]
    paths = re.findall(r"`(benchmarks/results/\w+\.json)`", told)
    table = runpy.run_path(str(ROOT / "benchmarks" / "readme_table.py"))["table"]
    expected = []
    for path, dtype in zip(paths, ("fp32", "bf16", "fp16"), strict=True):
        found = results.load(ROOT / path)
        machine = found["machine"]
        assert f"{path}`: {machine['gpu']}, {machine['date']}" in " ".join(told.split())
        assert {row["dtype"] for row in found["rows"]} == {dtype}
        expected += table(found)
    assert re.findall(r"^\| `\w+` \| (?:for|back)ward .*", told, re.MULTILINE) == expected


def test_step_figures_are_those_measured():
    told, _ = section("Six steps to flash2").split("What each asks of memory")
    (path,) = re.findall(r"`(benchmarks/results/\w+\.json)`", told)
    found = json.loads((ROOT / path).read_text())
    machine, rows = found["machine"], found["rows"]
    assert f"{path}`: {machine['gpu']}, {machine['date']}" in " ".join(told.split())
    ((seqlen, causal),) = {(row["seqlen"], row["causal"]) for row in rows}
    dims = sorted({row["head_dim"] for row in rows})
    sizes = f"head_dim {' and '.join(map(str, dims))}, full attention at N = {seqlen:,}"
    assert not causal
    assert sizes in " ".join(told.split())
    assert [row["step"] for row in rows] == list(STEPS) * len(dims)
    of_dim = [[row for row in rows if row["head_dim"] == dim] for dim in dims]
    expected = [
        (f"`{step}`", " | ".join(f"{own[number]['tflops']:.1f}" for own in of_dim))
        for number, step in enumerate(STEPS)
    ]
    peers = (f"{own[-1]['peer_tflops']['torch_efficient']:.1f}" for own in of_dim)
    expected.append(("torch", " | ".join(peers)))
    assert re.findall(r"^\| (`\S+`|torch) \| [^|]* \| (.+) \|$", told, re.MULTILINE) == expected


COUNTERS = (
    ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", 1, ",.0f"),
    ("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum", 1, ",.0f"),
    ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum", 1e6, ".2f"),
    ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum", 1e6, ".2f"),
)
"""Of the table of steps: counter, unit and format of a column."""


def test_step_counters_are_those_measured():
    _, told = section("Six steps to flash2").split("What each asks of memory")
    (path,) = re.findall(r"`(benchmarks/results/\w+\.json)`", told)
    found = json.loads((ROOT / path).read_text())
    machine, expected = found["machine"], []
    assert f"{path}`: {machine['gpu']}, {machine['date']}" in " ".join(told.split())
    for step in STEPS:
        case = found["cases"][f"{step}-forward-full"]
        size = case["problem"]
        asked = "{num_heads} heads, {seqlen_q} queries, {seqlen_k} keys, head_dim {head_dim}."
        assert asked.format(**size) in " ".join(told.split())
        (launch,) = case["launches"]
        cells = [f"{launch['counters'][name] / unit:{form}}" for name, unit, form in COUNTERS]
        expected.append(f"| `{step}` | {' | '.join(cells)} |")
    assert re.findall(r"^\| `.*", told, re.MULTILINE) == expected


def test_costs_of_a_call_are_those_measured():
    told = " ".join(section("What a call costs").split())
    measured = sorted((ROOT / "benchmarks/results").glob("*_host_time.json"))
    cited = [ROOT / path for path in re.findall(r"`(benchmarks/results/\w+\.json)`", told)]
    assert cited == measured
    if not measured:
        assert "µs" not in told
        return
    (path,) = cited
    results = json.loads(path.read_text())
    assert f"{results['machine']['gpu']}, {results['machine']['date']}" in told
    rows = {what: [] for what in ("call", "first call", "graph", "memory")}
    for row in results["rows"]:
        rows[row["what"]].append(row)
    lines = [
        f"| {row['call']} | {row['host_us']:.1f} | {row['launch_us']:.1f} "
        f"| {row['allocation_us']:.1f} | {row['checks_us']:.1f} | {row['torch_sdpa_us']:.1f} |"
        for row in rows["call"]
        if row["dtype"] == "float32"
    ]
    assert len(lines) == 3
    assert re.findall(r"^\| (?:for|back)ward .*", section("What a call costs"), re.M) == lines
    for row in rows["first call"]:
        if row["head_dim"] == 64:
            text = f"{row['forward_s']:.2f} s, with gradients {row['both_s']:.2f} s"
            assert f"{row['cache']} cache {text}" in told
            assert row["numba_loaded"] == (row["cache"] == "empty")
    (graph,) = rows["graph"]
    assert f"replays in {graph['replay_us']:.1f} µs" in told
    extra = {(row["kernel"], row["direction"], row["seqlen"]): row for row in rows["memory"]}
    for kernel in ("standard", "flash1", "flash2"):
        for direction in ("forward", "backward"):
            small, large = (extra[kernel, direction, n]["extra_bytes"] for n in (8192, 16384))
            growth = 4 if kernel == "standard" else 2
            assert large <= growth * small + 4096
            assert f"{large / 2**20:,.1f}" in told


@pytest.mark.parametrize(
    "package",
    [f"simulator.{name}" for name in ("theory", "viewer", "grading", "claims", "course")],
)
def test_packages_name_their_files_in_reading_order(package):
    module = importlib.import_module(package)
    folder = Path(str(module.__file__)).parent
    order = (module.__doc__ or "").split("Reading order: ")[1].split("\n\n")[0]
    files = sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
    assert sorted(re.findall(r"`(\w+)`", order)) == files


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


def test_the_course_lists_every_notebook():
    listed = re.findall(r"\(tutorials/(\w+)\.ipynb\)", section("The course"))
    assert listed == sorted(path.stem for path in (ROOT / "tutorials").glob("*.ipynb"))
    assert f"one of {len(PUZZLES)} puzzles" in section("The course")
