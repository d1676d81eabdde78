"""Runs the very kernels of `flash_numba` on a CPU, thread by thread."""

from .runner import run

__all__ = ["run"]
