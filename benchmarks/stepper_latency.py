"""How long the stepper takes to answer a key, and how much memory it needs.

Runs the real command in a pseudo-terminal, presses keys, and takes the time from a key to the last
byte of the new frame. Prints a table; ``--write`` writes results/stepper_latency.json.

    python benchmarks/stepper_latency.py [--seqlen 4096] [--presses 30] [--write]
"""

import argparse
import fcntl
import json
import os
import platform
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parent / "results" / "stepper_latency.json"
QUIET_S = 0.08
"""A frame is complete when nothing has come for this long (the wait itself is not counted)."""

KEYS = {
    "event forward": "\x1b[C",
    "event back": "\x1b[D",
    "tile forward": "\x1b[1;2C",
    "tile back": "\x1b[1;2D",
    "jump to a tile": "\r",
    "first event": "\x1b[H",
    "last event": "\x1b[F",
    "next row": "\x1b[B",
    "zoom": "z",
    "by tensor": "t",
}


class Command:
    """`flash-numba step` in a pseudo-terminal of 120x40."""

    def __init__(self, *args):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        env = os.environ | {"TERM": "xterm-256color", "LANG": "C.UTF-8"}
        command = [sys.executable, "-m", "simulator.cli", "step", *args]
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=env)
        os.close(slave)
        self.text = ""

    def settle(self, wait_s: float) -> float | None:
        """When the last byte came; None if none came within `wait_s`."""
        last = None
        while select.select([self.master], [], [], QUIET_S if last else wait_s)[0]:
            try:
                self.text += os.read(self.master, 1 << 16).decode("utf-8", "replace")
            except OSError:
                break
            last = time.perf_counter()
        return last

    def start(self) -> None:
        """Wait for the first frame."""
        while "? help" not in self.text:
            if self.process.poll() is not None:
                sys.exit(f"the stepper ended: {self.text}")
            self.settle(1.0)

    def press(self, keys: str) -> float | None:
        """Seconds until the frame that a key leads to is there; None if nothing changed."""
        self.text = ""
        begun = time.perf_counter()
        os.write(self.master, keys.encode())
        last = self.settle(0.5)
        return None if last is None else last - begun

    def cpu_s(self) -> float:
        """Processor time used so far: what a key costs however busy the machine is (Linux)."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_mib(self) -> float:
        """The most memory that the process has had resident (Linux)."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        match = re.search(r"VmHWM:\s+(\d+) kB", status)
        return int(match[1]) / 1024 if match else float("nan")


def tile(rng, tiles: tuple[int, int]) -> str:
    """A pair of tiles that a causal mask leaves, as it is typed."""
    m_block = int(rng.integers(tiles[0]))
    return f"{m_block},{int(rng.integers((m_block + 1) * tiles[1] // tiles[0]))}"


def measure(args: list[str], tiles: tuple[int, int], presses: int) -> dict:
    """Latencies of all keys from random places of a run, and the peak memory."""
    command = Command(*args)
    command.start()
    rng = np.random.default_rng(0)
    keys = {}
    for name, sequence in KEYS.items():
        times, cpu = [], 0.0
        while len(times) < presses:
            command.press(f"g{tile(rng, tiles)}\r")
            if name == "jump to a tile":
                command.press(f"g{tile(rng, tiles)}")
            before = command.cpu_s()
            taken = command.press(sequence)
            if taken is not None:
                times.append(1e3 * taken)
                cpu += 1e3 * (command.cpu_s() - before)
        keys[name] = {
            "p50_ms": round(float(np.median(times)), 1),
            "max_ms": round(max(times), 1),
            "mean_cpu_ms": round(cpu / presses, 1),
        }
    peak = command.peak_mib()
    command.press("q")
    command.process.wait(20)
    return {"keys": keys, "peak_rss_mib": round(peak, 1)}


def main() -> None:
    """Measure one run, and two side by side."""
    parser = argparse.ArgumentParser(description="latency of the stepper's keys")
    parser.add_argument("--seqlen", type=int, default=4096)
    parser.add_argument("--presses", type=int, default=30)
    parser.add_argument("--write", action="store_true", help="write results/stepper_latency.json")
    options = parser.parse_args()
    tile_m, tile_n = 128, 64
    sizes = ["--seqlen", str(options.seqlen), "--head-dim", "64", "--causal"]
    sizes += ["--tile-m", str(tile_m), "--tile-n", str(tile_n)]
    tiles = -(-options.seqlen // tile_m), -(-options.seqlen // tile_n)
    runs = {
        "flash2 forward": [],
        "flash2 backward": ["--direction", "backward"],
        "flash2 beside flash1": ["--compare-with", "flash1"],
    }
    report = {
        "seqlen": options.seqlen,
        "head_dim": 64,
        "tile_m": tile_m,
        "tile_n": tile_n,
        "causal": True,
        "terminal": "120x40",
        "presses_per_key": options.presses,
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
        "niceness": os.nice(0),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "runs": {},
    }
    for name, extra in runs.items():
        found = measure([*sizes, *extra], tiles, options.presses)
        report["runs"][name] = found
        print(f"{name}: peak {found['peak_rss_mib']} MiB")
        for key, times in found["keys"].items():
            print(
                f"  {key:<16}{times['p50_ms']:>8} ms median {times['max_ms']:>8} ms at most "
                f"{times['mean_cpu_ms']:>8} ms of CPU"
            )
    if options.write:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(report, indent=2) + "\n")
        print(f"wrote {RESULTS}")


if __name__ == "__main__":
    main()
