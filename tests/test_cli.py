import csv
import io
import json
import pickle
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from simulator.cli import app
from simulator.hardware import GPUS
from simulator.inputs import demo_input
from simulator.programs import BROKEN, PROGRAMS
from simulator.viewer.session import program_names

ROOT = Path(__file__).parents[1]
SMALL = ("compare", "--seqlen", "96", "--head-dim", "16", "--tile-m", "32", "--tile-n", "32")


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def printed(*arguments) -> dict:
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def files(tmp_path):
    """One file of each kind, good and bad, by name."""
    rng = np.random.default_rng(0)

    def tensor(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    good = {"q": tensor(2, 40, 4, 16), "k": tensor(2, 50, 2, 16), "v": tensor(2, 50, 2, 16)}
    nan = good["v"].copy()
    nan[1, 2, 0, 3] = np.nan
    archives = {
        "good": {},
        "shapes": {"v": tensor(2, 49, 2, 16)},
        "rank": {"q": tensor(40, 4, 16)},
        "groups": {"q": tensor(2, 40, 3, 16)},
        "nan": {"v": nan},
        "ints": {"k": np.ones((2, 50, 2, 16), np.int64)},
    }
    for name, changed in archives.items():
        np.savez(tmp_path / f"{name}.npz", **{**good, **changed})  # pyright: ignore
    np.savez(tmp_path / "keys.npz", query=good["q"], key=good["k"])
    np.save(tmp_path / "good.npy", tensor(3, 1, 40, 2, 16))
    np.save(tmp_path / "rank.npy", tensor(1, 40, 2, 16))
    np.save(tmp_path / "pickled.npy", np.array([{}], object))
    (tmp_path / "pickle.npy").write_bytes(pickle.dumps({}))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "good.npz").read_bytes()[:500])
    (tmp_path / "text.csv").write_text("1,2\n")
    return tmp_path


BAD = {
    "mismatched shapes": (
        ["--input", "shapes.npz"],
        "k and v must agree in seqlen_k (layout: batch, seqlen, heads, head_dim); k has 50, v has",
    ),
    "wrong rank": (["--input", "rank.npz"], "q must have 4 axes (batch, seqlen, heads, head_dim)"),
    "npy of wrong rank": (["--input", "rank.npy"], "input .npy must have shape (3, batch,"),
    "heads not divisible": (["--input", "groups.npz"], "heads of q must be a multiple of"),
    "head options not divisible": (
        ["--heads", "4", "--kv-heads", "3"],
        "num_heads must be a multiple of num_kv_heads, got num_heads=4 and num_kv_heads=3",
    ),
    "tile larger than SRAM": (
        ["--seqlen", "4096", "--tile-m", "2048", "--tile-n", "2048"],
        "tile_m and tile_n must let all tiles fit into sram_bytes=232,448, got tile_m=2048",
    ),
    "non-finite": (["--input", "nan.npz"], "v must be finite, got nan at (1, 2, 0, 3)"),
    "non-float": (["--input", "ints.npz"], "k must hold floats, got dtype int64"),
    "wrong keys": (["--input", "keys.npz"], "input must hold arrays named q, k and v"),
    "cut off": (["--input", "cut.npz"], "cannot be read"),
    "pickled array": (["--input", "pickled.npy"], "pickled Python objects are refused"),
    "bare pickle": (["--input", "pickle.npy"], "pickled Python objects are refused"),
    "unknown kind": (["--input", "text.csv"], "input must be .npz"),
    "no such file": (["--input", "none.npz"], "does not exist"),
    "head out of range": (["--heads", "2", "--head", "2"], "head must lie in 0..1, got 2"),
    "negative head": (["--head", "-1"], "head must lie in 0..0, got -1"),
    "negative window": (["--window", "-1", "none"], "window side (None = unlimited) must be"),
    "window not a number": (["--window", "a", "2"], "window must be two whole numbers or 'none'"),
    "one window side": (["--window", "3"], "Option '--window' requires 2 arguments"),
    "no rows in a tile": (["--tile-m", "0"], "tile_m must be a whole number >= 1, got 0"),
    "negative length": (["--seqlen", "-5"], "seqlen_q must be a whole number >= 0, got -5"),
    "no queries": (["--seqlen", "0"], "seqlen_q must be at least 1 for programs to compare, got 0"),
    "no columns": (["--head-dim", "0"], "head_dim must be a whole number >= 1, got 0"),
    "not a number": (["--seqlen", "many"], "Invalid value for '--seqlen'"),
    "unknown dtype": (["--dtype", "int8"], "dtype must be one of fp32, fp16, bf16, fp8; got"),
    "unknown direction": (
        ["--direction", "up"],
        "direction must be one of forward, backward, both",
    ),
    "unknown gpu": (["--gpu", "A1000"], "gpu must be one of V100"),
    "gpu without the type": (["--gpu", "V100", "--dtype", "fp8"], "dtype must be one that V100"),
    "unknown program": (["--program", "flash9"], "program must be all or one of"),
    "unknown baseline": (["--baseline", "flash2"], "baseline must be all or one of algorithm0"),
    "unknown option": (["--nope"], "No such option"),
    "two formats": (["--json", "--csv"], "--json cannot go with --csv, got both"),
    "one and all heads": (["--head", "0", "--all-heads"], "--all-heads cannot go with --head"),
    "two lengths": (["--seqlen", "64", "--seqlen-q", "64"], "--seqlen cannot go with --seqlen-q"),
    "one length": (["--seqlen-k", "64"], "--seqlen-q and --seqlen-k must come together, got --seq"),
    "file and sizes": (
        ["--input", "good.npz", "--heads", "2"],
        "--input brings its own sizes, got",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_one_line_and_exit_code_2(files, monkeypatch, arguments, message):
    monkeypatch.chdir(files)
    before = sorted(files.iterdir())
    result = invoke("compare", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr
    assert sorted(files.iterdir()) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["compare", "--input", "nan.npz"],
        ["compare", "--seqlen", "4096", "--tile-m", "2048", "--tile-n", "2048", "--json"],
        ["compare", "--json", "--csv"],
        ["compare", "--seqlen", "many"],
        ["nothing"],
    ],
    ids=lambda arguments: " ".join(arguments[:3]),
)
def test_exit_code_and_streams_of_the_real_command(files, arguments):
    run = subprocess.run(
        [sys.executable, "-m", "simulator.cli", *arguments],
        capture_output=True,
        text=True,
        cwd=files,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        check=False,
    )
    assert run.returncode == 2
    assert run.stdout == ""
    assert run.stderr.startswith("error: ")
    assert run.stderr.count("\n") == 1


def test_defaults():
    found = printed("compare")
    assert found["problem"] == {
        "seqlen_q": 1024,
        "seqlen_k": 1024,
        "head_dim": 64,
        "tile_m": 128,
        "tile_n": 64,
        "causal": False,
        "dtype": "fp16",
        "direction": "forward",
        "heads": 1,
    }
    names = [(entry["name"], entry["baseline"]) for entry in found["programs"]]
    assert names == [
        ("standard", "algorithm0"),
        ("standard", "tiled"),
        ("flash1", None),
        ("flash2", None),
    ]


def test_options_reach_the_problem():
    found = printed(
        *("compare", "--seqlen-q", 100, "--seqlen-k", 200, "--head-dim", 32, "--heads", 4),
        *("--kv-heads", 2, "--tile-m", 16, "--tile-n", 48, "--causal", "--dtype", "bf16"),
        *("--direction", "backward", "--program", "flash2", "--baseline", "fused_softmax"),
    )
    assert found["problem"] == {
        "seqlen_q": 100,
        "seqlen_k": 200,
        "head_dim": 32,
        "tile_m": 16,
        "tile_n": 48,
        "causal": True,
        "dtype": "bf16",
        "direction": "backward",
        "heads": 4,
    }
    assert [entry["baseline"] for entry in found["programs"]] == [
        "algorithm0",
        "fused_softmax",
        None,
    ]


def flash2_bytes(*arguments):
    found = printed(*SMALL, "--program", "flash2", *arguments)
    return found["programs"][-1]["hbm_bytes"]


def test_window_and_causal_skip_tiles():
    full = flash2_bytes()
    assert flash2_bytes("--window", "none", "none") == full
    assert flash2_bytes("--window", "None", "0") == flash2_bytes("--causal") < full
    assert flash2_bytes("--window", "8", "8") < full


def test_all_heads_and_batch_multiply():
    assert flash2_bytes("--heads", "3", "--batch", "2", "--all-heads") == 6 * flash2_bytes()
    assert flash2_bytes("--heads", "3", "--batch", "2", "--head", "2") == flash2_bytes()


@pytest.mark.parametrize("name", ["good.npz", "good.npy"])
def test_input_gives_the_sizes(files, name):
    found = printed("compare", "--input", files / name, "--tile-m", 32, "--tile-n", 32)
    problem = found["problem"]
    keys = 50 if name == "good.npz" else 40
    assert (problem["seqlen_q"], problem["seqlen_k"], problem["head_dim"]) == (40, keys, 16)
    assert problem["dtype"] == "fp16"


def test_input_of_a_real_layer(tmp_path):
    q, k, v, _ = demo_input()
    np.savez(tmp_path / "layer.npz", q=q, k=k, v=v)
    found = printed("compare", "--input", tmp_path / "layer.npz", "--head", 11)
    assert found["problem"]["heads"] == 12
    assert found["programs"][0]["hbm_read_elements"] == 2 * 206**2 + 3 * 206 * 32


def test_csv():
    result = invoke(*SMALL, "--csv")
    assert result.exit_code == 0
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [row["name"] for row in rows] == ["standard", "standard", "flash1", "flash2"]
    assert all(row["hbm_bytes"] == row["theory_hbm_bytes"] for row in rows)


def test_table_says_it_in_words_and_nothing_on_stderr():
    result = invoke(*SMALL)
    assert result.exit_code == 0
    assert "flash2 moves" in " ".join(result.stdout.split())
    assert result.stderr == ""


def test_help_lists_commands_and_no_arguments_is_help():
    result = invoke("--help")
    assert result.exit_code == 0
    for command in ("compare", "doctor"):
        assert command in result.stdout
    assert invoke().stdout == result.stdout
    assert "--tile-m" in invoke("compare", "-h").stdout


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom simulator.cli import app\ntry: app(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'numpy', 'numba', 'torch', 'textual', 'ml_dtypes'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True)


def test_doctor_prints_json_and_text():
    result = invoke("doctor", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["facts"]["python"]
    assert invoke("doctor").stdout.startswith("Python ")


def help_of(*arguments):
    result = CliRunner().invoke(app, [*arguments, "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    return result.stdout


@pytest.mark.parametrize("command", [(), ("compare",), ("step",)], ids="-".join)
def test_examples_of_the_help_run(command, files, monkeypatch):
    monkeypatch.chdir(files)
    (files / "good.npz").rename("layer.npz")
    examples = re.findall(r"^ +flash-numba (.*)", help_of(*command), re.M)
    assert len(examples) > 1
    for example in examples:
        result = invoke(*shlex.split(example))
        assert result.exit_code == 0, (example, result.output)


def test_the_help_names_what_options_take():
    text = " ".join(help_of("step").replace("│", " ").split())
    assert all(re.search(rf"\b{name}\b", text) for name in program_names())
    assert all(gpu.name.replace(" ", "") in text for gpu in GPUS)
    text = " ".join(help_of("compare").replace("│", " ").split())
    assert all(re.search(rf"\b{name}\b", text) for name in PROGRAMS if name not in BROKEN)
    assert all(gpu.name.replace(" ", "") in text for gpu in GPUS)
    commands = re.findall(r"^│ (\w+) {2,}", help_of(), re.M)
    assert commands == ["step", "compare", "trace", "bench", "claims", "learn", "doctor"]
