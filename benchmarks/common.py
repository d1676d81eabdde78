"""What programs that run on a GPU share: the machine, and writing results."""

import json
from functools import cache
from pathlib import Path

from simulator.bench import gpu


@cache
def machine() -> dict:
    """GPU, driver, versions and date of a run; a ValueError where no GPU is."""
    return gpu.find().machine()


def write(path: str | Path, rows: list[dict]) -> None:
    """Write `rows` with the machine they were measured on."""
    Path(path).write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
