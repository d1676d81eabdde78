"""Measure every record of an H200 anew, in one go: first all is compiled, then nothing is.

Writes the JSON files of `results` that need a GPU, and what each program printed, into a folder as
they come; a program that is cut or fails leaves out only its own. The host's times are taken while
nothing else runs. Then programs that are timed or counted follow one another on the first GPU;
tests and compute-sanitizer run on a second one beside them, or after them on the first. About
eight minutes with ``--gpus 2`` and 32 cores.

    python benchmarks/records.py FOLDER [--commit ID] [--only NAME ...] [--seconds 600] [--gpus 2]
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from threading import Thread
from typing import NamedTuple

HERE = Path(__file__).parent
BENCH = ("-m", "simulator.cli", "bench")
FUSED = (*BENCH, "--rung", "tensor_core", "--rung", "hopper", "--budget", "0.25")
FUSED += ("--peer", "torch_flash", "--peer", "torch_cudnn", "--peer", "torch_math")
WIDE = ("--head-dim", "96", "--head-dim", "192", "--head-dim", "256")
LENGTHS = {n: ("--seqlen", str(n)) for n in (1024, 2048, 4096, 8192)}
FLOAT = (*BENCH, "--dtype", "fp32", *LENGTHS[1024], *LENGTHS[2048], *LENGTHS[4096], *LENGTHS[8192])
FLOAT += ("--rung", "standard", "--rung", "flash1", "--rung", "flash2", "--budget", "0.3")
FLOAT += ("--peer", "torch_efficient", "--peer", "torch_math")
PYTEST = ("--", "-n", "24", "--dist", "worksteal", "-rfs", "--tb=short")


class Program(NamedTuple):
    """What writes one record.

    Attributes
    ----------
    file : str
        The record, in `benchmarks/results`.
    arguments : tuple[str, ...]
        Of python; "FILE" is where the record goes, "ID" the commit.
    seconds : int
        After which it is cut.
    compiles : bool
        Whether ``--compile N`` makes it compile, in N processes, and do no more.
    """

    file: str
    arguments: tuple[str, ...]
    seconds: int
    compiles: bool = False

    def command(self, folder: Path, commit: str) -> list[str]:
        """The command that leaves the record in a folder."""
        own = {"FILE": str(folder / self.file), "ID": commit}
        return [sys.executable, *(own.get(word, word) for word in self.arguments)]


ALONE = [Program("h200_host_time.json", (str(HERE / "host_time.py"), "FILE"), 110)]
TIMED = [
    Program("h200_fp16.json", (*FUSED, "--dtype", "fp16", "--output", "FILE"), 130, True),
    Program("h200_bf16.json", (*FUSED, "--dtype", "bf16", "--output", "FILE"), 130, True),
    Program(
        "h200_head_dims.json",
        (*FUSED, "--dtype", "fp16", *WIDE, *LENGTHS[2048], *LENGTHS[8192], "--output", "FILE"),
        100,
        True,
    ),
    Program("h200_fp32.json", (*FLOAT, "--output", "FILE"), 110, True),
    Program("h200_varlen.json", (str(HERE / "varlen.py"), "FILE"), 60, True),
    Program("h200_steps.json", (str(HERE / "teaching_steps.py"), "--output", "FILE"), 70),
    Program("h200_counters.json", (str(HERE / "counters.py"), "--output", "FILE"), 240),
    Program("h200_peer_instructions.json", (str(HERE / "peer_instructions.py"), "FILE"), 60),
]
BESIDE = [
    Program(
        "h200_tests.json",
        (str(HERE / "gpu_tests.py"), "--commit", "ID", "FILE", *PYTEST),
        420,
    ),
    Program("sanitize.json", (str(HERE / "sanitize.py"), "FILE", "--jobs", "6"), 420),
    Program(
        "hopper_backward_instructions.npz",
        (str(HERE / "hopper_backward_instructions.py"), "FILE"),
        90,
    ),
]
PROGRAMS = ALONE + TIMED + BESIDE


class Records:
    """A run: where its files go, and until when.

    Parameters
    ----------
    folder : Path
        Of the records and the programs' words.
    commit : str
        What is measured.
    seconds : float
        For all together; what has not ended then is cut.
    """

    def __init__(self, folder: Path, commit: str, seconds: float):
        self.folder, self.commit, self.start = folder, commit, time.monotonic()
        self.end = self.start + seconds
        folder.mkdir(parents=True, exist_ok=True)

    def run(self, program: Program, gpu: int, *more: str) -> None:
        """Run a program on one GPU, with more options if there are, and say how it went."""
        left = min(program.seconds, self.end - time.monotonic())
        if left < 5:
            self.say(f"{program.file}: no time left")
            return
        name = f"{program.file}{'.compiled' if more else ''}.txt"
        env = os.environ | {"CUDA_VISIBLE_DEVICES": str(gpu)}
        command = program.command(self.folder, self.commit) + list(more)
        with (self.folder / name).open("w") as words:
            try:
                done = subprocess.run(
                    command, env=env, stdout=words, stderr=subprocess.STDOUT, timeout=left
                )
                ended = f"exit status {done.returncode}"
            except subprocess.TimeoutExpired:
                ended = f"cut after {left:.0f} s"
        self.say(f"{name[:-4]}: {ended}")

    def run_all(self, programs: Iterable[Program], gpu: int) -> None:
        """One after another."""
        for program in programs:
            self.run(program, gpu)

    def say(self, words: str) -> None:
        """Print with the seconds since the start, and keep."""
        line = f"[{time.monotonic() - self.start:5.1f}] {words}"
        print(line, flush=True)
        with (self.folder / "log.txt").open("a") as log:
            print(line, file=log)


def together(*threads: Thread) -> None:
    """Start them and wait."""
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    """Compile, then measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--commit", default="", metavar="ID")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="records, such as h200_fp16.json")
    parser.add_argument("--seconds", type=float, default=600, help="for all together")
    parser.add_argument("--gpus", type=int, choices=(1, 2), default=1)
    options = parser.parse_args()
    unknown = set(options.only or ()) - {program.file for program in PROGRAMS}
    if unknown:
        parser.error(f"--only: no record is named {', '.join(sorted(unknown))}")
    records = Records(options.folder, options.commit, options.seconds)
    wanted = [p for p in PROGRAMS if not options.only or p.file in options.only]
    compiled = [p for p in wanted if p.compiles]
    jobs = str(max(1, (os.cpu_count() or 1) // max(1, len(compiled))))
    together(*(Thread(target=records.run, args=(p, 0, "--compile", jobs)) for p in compiled))
    records.run_all([p for p in wanted if p in ALONE], 0)
    timed = Thread(target=records.run_all, args=([p for p in wanted if p in TIMED], 0))
    last = options.gpus - 1
    beside = [Thread(target=records.run, args=(p, last)) for p in wanted if p in BESIDE]
    if last:
        together(timed, *beside)
    else:
        together(timed)
        together(*beside)


if __name__ == "__main__":
    main()
