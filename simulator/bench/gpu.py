"""The GPU that is timed: CUDA events, and what it is called."""

from __future__ import annotations

import datetime
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from flash_numba import ladder

from .cells import PEERS
from .contenders import Contender


class TorchGpu:
    """The first GPU of this machine, through torch.

    Attributes
    ----------
    device : str
        Where tensors go.
    peers : tuple of str
        Keys of `cells.PEERS` that it may have.
    gpu : ladder.Gpu
    """

    device = "cuda"
    peers = tuple(PEERS)

    def __init__(self, gpu: ladder.Gpu):
        import torch

        self.gpu = gpu
        torch.set_float32_matmul_precision("highest")  # torch's fp32 is fp32, not TF32

    @property
    def stream(self) -> int:
        """Handle of torch's current stream."""
        import torch

        return torch.cuda.current_stream().cuda_stream

    def milliseconds(self, contender: Contender, count: int) -> float:
        """Time of one of `count` calls back to back, between two CUDA events."""
        import torch

        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(count):
            contender.run()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / count

    def empty(self) -> None:
        """Give back memory that nobody uses."""
        import torch

        torch.cuda.empty_cache()

    def machine(self) -> dict[str, Any]:
        """GPU, driver, versions and date."""
        import torch

        packages = ("flash-numba", "numba", "numba-cuda", "numpy", "torch")
        found = {"python": sys.version.split()[0], "cuda": torch.version.cuda}
        found["cudnn"] = torch.backends.cudnn.version()
        return {
            "gpu": self.gpu.name,
            "driver": _driver(),
            "versions": found | {name: _version(name) for name in packages},
            "date": datetime.date.today().isoformat(),
        }


def find() -> TorchGpu:
    """The GPU of this machine.

    Raises
    ------
    ValueError
        Saying what is needed where there is none, or no torch.
    """
    needs = "an NVIDIA GPU is needed, with the extra cu12 or cu13, and torch with CUDA"
    gpu = ladder.find_gpu()
    if isinstance(gpu, ladder.NoGpu):
        raise ValueError(f"{needs}; {gpu.reason}")
    try:
        import torch
    except ImportError:
        raise ValueError(f"{needs}; torch is not installed") from None
    if not torch.cuda.is_available():
        raise ValueError(f"{needs}; torch {torch.__version__} finds no GPU")
    return TorchGpu(gpu)


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split()
    except OSError:
        found = []
    return found[0] if found else "unknown"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
