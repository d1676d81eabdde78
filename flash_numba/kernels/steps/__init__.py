"""Six kernels from naive to flash2, forward only: one idea a file.

Steps 1 to 3 know full and causal attention in fp32 with head dimensions of 32, 64, 96 and 128, of
any length and strides; steps 4 and 5 all that flash2 knows, if threads hold 4 or 8 keys each
(head dimensions up to 128). Each has ``forward(problem, q, k, v, out, lse, stream)`` like
`kernels.flash2`, which is the last.
"""

from importlib import import_module
from typing import Any

STEPS = {
    "naive": "step1_naive",
    "conflict-free": "step2_conflict_free",
    "registers": "step3_registers",
    "tiles": "step4_tiles",
    "async": "step5_async",
    "flash2": "flash2",
}
"""Every step's module by name, in reading order."""


def module_of(step: str) -> Any:
    """The module of a step."""
    if step not in STEPS:
        raise ValueError(f"step must be one of {', '.join(STEPS)}, got {step!r}")
    package = "flash_numba.kernels" if step == "flash2" else __name__
    return import_module(f"{package}.{STEPS[step]}")
