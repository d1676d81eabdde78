import contextlib
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.cells import cell_len

from simulator.cli import app
from simulator.viewer import sources
from simulator.viewer.session import Session
from simulator.viewer.show import is_terminal

ROOT = Path(__file__).parents[1]
SMALL = ["--seqlen", "40", "--head-dim", "4", "--tile-m", "16", "--tile-n", "8"]


@pytest.fixture
def step(capsys):
    """Call the command; gives exit code, output and errors."""

    def call(*args):
        with pytest.raises(SystemExit) as stop:
            app(["step", *map(str, args)])
        captured = capsys.readouterr()
        return stop.value.code, captured.out, captured.err

    return call


def test_the_demo_without_a_terminal_prints_three_frames_and_the_comparison(step):
    code, out, err = step("--demo")
    assert (code, err) == (0, "")
    frames = re.findall(
        r"^flash2 forward N 206 d 32 fp16 tiles 64x32 causal head 9 of 0..11$", out, re.M
    )
    assert len(frames) == 3
    assert out.startswith("Head 9 of a transformer's layer")
    (*_, (event, last)) = re.findall(r"event (\d+)/(\d+)", out)
    assert event == last
    assert out.count("equal ✓") >= 3
    assert re.search(r"row \d+ '\S+', key tile", out), "rows carry their tokens"
    comparison = out[out.rindex("row ") :]
    assert all(name in comparison for name in ("algorithm0", "tiled", "flash1", "flash2"))


def test_the_demo_shows_every_state_of_a_tile_and_saves_traffic(step):
    _, out, _ = step("--demo", "--plain", "--frames", "3")
    grids = [line for line in out.splitlines() if re.match(r"  [▸ ]  \d ", line)]
    for mark in ("■", "◆", "□", "◇", "[", "·"):
        assert any(mark in line for line in grids), mark
    assert "14x32" in out, "the tail of 206 queries"
    ratios = re.findall(r"([\d.]+)x standard", out)
    assert float(ratios[0]) < 0.3


def test_the_comparison_is_of_the_gpu_that_was_chosen(step):
    code, out, _ = step("--demo", "--gpu", "T4", "--frames", 1)
    assert code == 0
    assert "of 64 KiB" in out
    assert re.search(r"one query head · T4$", out, re.M)


@pytest.mark.parametrize("program", ["flash1", "flash2", "flash2_two_kernel", "tiled"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_every_program_steps_both_ways(step, program, direction):
    code, out, _ = step(*SMALL, "--program", program, "--direction", direction, "--plain")
    assert code == 0
    assert out.count(f"{program} {direction}") == 3
    assert "DIFFERS" not in out


def test_frames_start_and_compare_with(step):
    code, out, _ = step(
        *SMALL, "--causal", "--plain", "--frames", 1, "--start", "2,1", "--compare-with", "flash1"
    )
    assert code == 0
    assert out.count("at query tile 2, key tile 1") == 2
    assert "flash1 forward" in out
    code, out, _ = step(*SMALL, "--window", 8, "none", "--gpu", "T4", "--row", 7, "--plain")
    assert code == 0
    assert "window 8,inf" in out
    assert "of 64 KiB" in out
    assert "row 7" in out


def test_sizes_that_differ_heads_dtypes_and_files(step, tmp_path):
    code, out, _ = step("--seqlen-q", 5, "--seqlen-k", 9, "--heads", 3, "--head", 2, "--plain")
    assert code == 0
    assert "N 5 M 9" in out
    assert "head 2 of 0..2" in out
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 20, 2, 8)).astype(np.float32)
    np.savez(tmp_path / "qkv.npz", q=q, k=k, v=v)
    code, out, _ = step("--input", tmp_path / "qkv.npz", "--plain", "--frames", 1)
    assert code == 0
    assert "N 20 d 8 fp32" in out
    code, out, _ = step("--input", tmp_path / "qkv.npz", "--dtype", "bf16", "--plain")
    assert code == 0
    assert "N 20 d 8 bf16" in out


def test_a_saved_log_replays_to_the_same_frames(step, tmp_path):
    log = tmp_path / "log.npz"
    run = ("--direction", "backward", "--plain", "--start", "1,3")
    code, first, _ = step("--demo", *run, "--save", log)
    assert code == 0
    code, again, _ = step("--replay", log, "--plain", "--start", "1,3")
    assert code == 0
    assert again == first


@pytest.mark.parametrize("name", ["frame.svg", "frame.html", "FRAME.SVG"])
def test_exports(step, tmp_path, name):
    code, out, _ = step(*SMALL, "--causal", "--export", tmp_path / name)
    assert code == 0
    assert "wrote" in out
    text = (tmp_path / name).read_text(encoding="utf-8").replace("&#160;", " ")
    assert "row_max" in text
    assert "registers" in text
    code, _, _ = step(
        *SMALL, "--export", tmp_path / name, "--compare-with", "flash1", "--frames", 2
    )
    assert code == 0
    text = (tmp_path / name).read_text(encoding="utf-8").replace("&#160;", " ")
    assert text.count("flash1 forward") == 2
    assert [path.name for path in tmp_path.iterdir()] == [name]


NPZ = "{tmp}/bad.npz"
BAD = {
    "row": (["--demo", "--row", "206"], "row must be in 0..205, got 206"),
    "row-negative": (["--demo", "--row", "-1"], "row must be in 0..205, got -1"),
    "head": (["--demo", "--head", "12"], "got 12"),
    "program": (["--program", "flash9"], "program must be one of"),
    "idealised": (["--program", "algorithm0"], "program must be one of"),
    "direction": (["--direction", "up"], "direction must be one of forward, backward; got 'up'"),
    "compare": ([*SMALL, "--compare-with", "x"], "program must be one of"),
    "tile": (["--tile-m", "0"], "tile_m must be a whole number >= 1, got 0"),
    "sram": (["--gpu", "T4", "--tile-m", "512"], "SRAM"),
    "gpu": (["--gpu", "H900"], "gpu must be one of"),
    "dtype": (["--dtype", "fp12"], "dtype must be one of"),
    "empty": (["--seqlen", "0"], "seqlen_q must be at least 1"),
    "long": (["--seqlen", "100000", "--head-dim", "1"], "at most 50,000 pairs of tiles"),
    "start": ([*SMALL, "--start", "nowhere"], "place must look like"),
    "start-tile": ([*SMALL, "--causal", "--start", "0,4"], "is skipped"),
    "break": (["--break", "x"], "--break must look like"),
    "break-row": ([*SMALL, "--break", "row 40"], "row must be in 0..39, got 40"),
    "frames": ([*SMALL, "--plain", "--frames", "0"], "frames must be a whole number >= 1, got 0"),
    "frames-export": (
        [*SMALL, "--export", "x.svg", "--frames", "0"],
        "frames must be a whole number",
    ),
    "export": (["--export", "x.pdf"], "export must end in .html or .svg, got x.pdf"),
    "export-folder": (["--export", "{tmp}/no/x.svg"], "a folder that exists"),
    "export-onto-folder": ([*SMALL, "--export", "{tmp}/d.svg"], "must be a file in a folder"),
    "save-onto-folder": (
        [*SMALL, "--plain", "--save", "{tmp}/d.npz"],
        "must be a file in a folder",
    ),
    "save-then-start": ([*SMALL, "--save", "{tmp}/x.npz", "--start", "0,9"], "key tile must be in"),
    "save-then-row": ([*SMALL, "--save", "{tmp}/x.npz", "--row", "40"], "row must be in 0..39"),
    "save": (["--save", "x.txt"], "--save must end in .npz, got x.txt"),
    "save-folder": (["--save", "{tmp}/no/x.npz"], "a folder that exists"),
    "input-missing": (["--input", "{tmp}/none.npz"], "none.npz"),
    "input": (["--input", NPZ], "bad.npz"),
    "replay": (["--replay", NPZ], "--replay must name a file that `step --save` wrote, got"),
    "replay-missing": (["--replay", "{tmp}/none.npz"], "does not exist"),
    "two-sources": (["--demo", "--replay", "x"], "exclude each other"),
    "demo-sizes": (["--demo", "--seqlen", "20"], "--demo brings its own sizes, got --seqlen too"),
    "replay-options": (["--replay", "x", "--causal"], "got --causal too"),
    "replay-program": (["--replay", "x", "--program", "flash1"], "got --program too"),
    "replay-direction": (["--replay", "x", "--direction", "backward"], "got --direction too"),
    "replay-pipe": (["--replay", "/dev/zero"], "which is no .npz file"),
    "window": (["--window", "a", "2"], "window"),
    "one-seqlen": (["--seqlen-q", "20"], "together"),
}


@pytest.mark.parametrize("case", BAD)
def test_mistakes_are_one_line_and_leave_nothing(step, tmp_path, case):
    args, message = BAD[case]
    (tmp_path / "bad.npz").write_bytes(b"PK\x05\x06 not much")
    for folder in ("d.svg", "d.npz"):
        (tmp_path / folder).mkdir()
    code, out, err = step(*(arg.format(tmp=tmp_path) for arg in args))
    assert code == 2
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err
    assert out == ""
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["bad.npz", "d.npz", "d.svg"]


def test_an_input_is_no_log_to_replay(step, tmp_path):
    x = np.zeros((1, 8, 1, 4))
    np.savez(tmp_path / "layer.npz", q=x, k=x, v=x)
    code, out, err = step("--replay", tmp_path / "layer.npz")
    assert (code, out) == (2, "")
    assert "`step --save` wrote" in err
    assert err.endswith("layer.npz, which holds no event log\n")


def test_a_damaged_log_is_one_line(step, tmp_path):
    """Bytes flipped, cut off or swapped: either the frames come out, or one line says why not."""
    path = tmp_path / "log.npz"
    assert step(*SMALL, "--plain", "--frames", 1, "--save", path)[0] == 0
    good, rng = path.read_bytes(), np.random.default_rng(3)
    failures = 0
    for trial in range(60):
        damaged = bytearray(good)
        if trial % 3 == 0:
            damaged = damaged[: rng.integers(1, len(good))]
        for _ in range(3):
            damaged[rng.integers(len(damaged))] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(damaged))
        code, _, err = step("--replay", path, "--plain", "--frames", 2)
        assert code in (0, 2)
        if code:
            assert err.startswith("error: ")
            assert err.count("\n") == 1
            failures += 1
    assert failures > 30


def test_a_run_that_is_too_long_is_refused_before_it_is_recorded():
    from flash_numba.problem import Problem

    problem = Problem(60_000, 60_000, 1)
    arrays = [np.zeros((1, 60_000, 1, 1), np.float16)] * 3
    started = time.process_time()
    pairs = (-(-60_000 // 64)) ** 2
    with pytest.raises(ValueError, match=f"pairs of tiles, got {pairs:,}"):
        Session(problem, *arrays).run("flash2", "forward", 0)
    assert time.process_time() - started < 5


class Terminal:
    """The real command in a pseudo-terminal."""

    def __init__(self, *args, size=(80, 24), **environment):
        self.master, slave = pty.openpty()
        size_bytes = struct.pack("HHHH", size[1], size[0], 0, 0)
        import fcntl

        fcntl.ioctl(slave, termios.TIOCSWINSZ, size_bytes)
        env = os.environ | {"TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONUTF8": "1"}
        env.pop("NO_COLOR", None)
        env.pop("COLUMNS", None)
        env.pop("LINES", None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "simulator.cli", "step", *args],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=ROOT,
            env=env | environment,
            close_fds=True,
        )
        os.close(slave)
        self.seen = ""

    def read_until(self, text, timeout=180.0):
        """Wait until the command has written `text`."""
        deadline = time.monotonic() + timeout
        while text not in self.seen:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} never came: {self.seen[-3000:]!r}"
            if not select.select([self.master], [], [], left)[0]:
                continue
            try:
                piece = os.read(self.master, 65536)
            except OSError:
                piece = b""
            assert piece or text in self.seen, f"ended without {text!r}: {self.seen[-3000:]!r}"
            self.seen += piece.decode("utf-8", "replace")

    def code(self):
        """The exit code; what is still written is read, so that nothing waits for us."""
        deadline = time.monotonic() + 180
        while self.process.poll() is None and time.monotonic() < deadline:
            if select.select([self.master], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):
                    self.seen += os.read(self.master, 65536).decode("utf-8", "replace")
        return self.process.poll()

    def press(self, keys):
        """Send keys as a terminal does, forgetting what was seen."""
        self.seen = ""
        os.write(self.master, keys.encode())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)


def test_the_real_command_in_a_terminal_of_80x24():
    source = sources.session(None, True, {}, sources.DEMO | {"dtype": None}, None, None)
    replay = source.run("flash2", "forward", sources.DEMO["head"]).replay
    last, first_stop = len(replay) - 1, int(replay.steps.stops[0])
    with Terminal("--demo") as terminal:
        terminal.read_until("? help")
        terminal.read_until(f"event 0/{last}")
        terminal.press("\x1b[C")
        terminal.read_until(f"1/{last}")
        terminal.press("\x1b[1;2C")
        terminal.read_until(f"{first_stop}/{last}")
        terminal.press("\x1b[D")
        terminal.read_until(f"{first_stop - 1}/{last}")
        terminal.press("g")
        terminal.read_until("go? ")
        terminal.press("2,1\r")
        terminal.read_until(f"{replay.find_tile(2, 1)}/{last}")
        terminal.press("g3,2\r")
        terminal.read_until(f"{replay.find_tile(3, 2)}/{last}")
        terminal.press("?")
        terminal.read_until("The panels")
        terminal.press("\x1b")
        terminal.read_until("? help")  # the keys together would be another one
        terminal.press("q")
        assert terminal.code() == 0


@pytest.mark.parametrize("away", ["stdin", "stdout", "stderr"])
def test_the_stepper_needs_a_terminal_at_all_ends(monkeypatch, away):
    """It would wait for keys, or draw, where nobody is."""
    monkeypatch.setenv("TERM", "xterm")
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, SimpleNamespace(isatty=lambda there=name != away: there))
    assert not is_terminal()
    monkeypatch.setattr(sys, away, SimpleNamespace(isatty=lambda: True))
    assert is_terminal()


def test_no_colour_reaches_a_terminal_that_wants_none():
    with Terminal("--demo", NO_COLOR="1") as terminal:
        terminal.read_until("? help")
        coloured = re.findall(r"\x1b\[(?:\d+;)*(3[0-7]|38|48|4[0-7]|9[0-7])(?:;|m)", terminal.seen)
        assert not coloured
        terminal.press("q")
        assert terminal.code() == 0


def test_a_terminal_that_is_too_small_is_one_line():
    with Terminal("--demo", size=(40, 10)) as terminal:
        terminal.read_until("error: terminal needs 40x20, got 40x10: enlarge it, or add --plain")
        assert terminal.code() == 2
        assert "\x1b[?1049h" not in terminal.seen, "the app never started"


def test_frames_in_a_pipe_are_as_wide_as_asked():
    for columns in ("50", "120"):
        done = subprocess.run(
            [sys.executable, "-m", "simulator.cli", "step", *SMALL, "--plain"],
            capture_output=True,
            cwd=ROOT,
            env=os.environ | {"COLUMNS": columns, "PYTHONIOENCODING": "utf-8"},
            check=True,
        )
        lines = done.stdout.decode().splitlines()
        assert max(cell_len(line) for line in lines) <= int(columns)
        assert b"\x1b" not in done.stdout


def test_an_ascii_pipe_gets_ascii():
    done = subprocess.run(
        [sys.executable, "-m", "simulator.cli", "step", *SMALL, "--causal"],
        capture_output=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        check=True,
    )
    assert done.stdout.isascii()
    assert b"equal (ok)" in done.stdout
