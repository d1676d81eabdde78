"""Compile kernels without a GPU and write what each needs.

python benchmarks/compile_table.py benchmarks/results/compile_table.json
python benchmarks/compile_table.py --all compile_all.json [--rung NAME] [--jobs N]
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from flash_numba.kernels.builds import Build, all_builds, listed_builds, prepare
from flash_numba.kernels.offline import assemble, compile_ptx, ptxas_release, static_shared_bytes
from flash_numba.launch import shared_limit


def resources(build: Build) -> dict:
    """A row of the table: the build, and what it needs or why it fails."""
    try:
        kernel, signature, shared_bytes = prepare(build)
        ptx = compile_ptx(kernel, signature, build.cc)
        found = assemble(ptx, build.cc)
        together, limit = shared_bytes + static_shared_bytes(ptx), shared_limit(build.cc[:2])
        if together > limit:
            raise ValueError(f"{together} bytes of shared memory where a block has {limit}")
    except Exception as error:
        return build._asdict() | {"error": f"{type(error).__name__}: {error}"}
    return build._asdict() | found._asdict() | {"shared_bytes": shared_bytes}


def rows(builds: list[Build], jobs: int) -> Iterator[dict]:
    """Rows as they come, in order, from `jobs` processes."""
    with ProcessPoolExecutor(jobs) as pool:
        for number, row in enumerate(pool.map(resources, builds), 1):
            print(f"{number}/{len(builds)}", *row.values(), flush=True)
            yield row


def of_other_rungs(path: Path, rung: str | None) -> list[dict]:
    """Rows of a table written before that are not of `rung`, to be kept; none if all are made."""
    if rung is None or not path.exists():
        return []
    return [row for row in json.loads(path.read_text())["rows"] if row["rung"] != rung]


def main() -> int:
    """Build all, print a line for each, write the table; 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--all", action="store_true", help="the whole matrix, not the listed ones")
    parser.add_argument("--rung", help="of one rung only, the others' rows are kept")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    listed = list(all_builds() if options.all else listed_builds())
    builds = [build for build in listed if options.rung in (None, build.rung)]
    kept = of_other_rungs(options.path, options.rung)
    found = list(rows(builds, options.jobs))
    order = [build.rung for build in listed]
    table = sorted(kept + found, key=lambda row: order.index(row["rung"]))
    options.path.write_text(json.dumps({"ptxas": ptxas_release(), "rows": table}, indent=1) + "\n")
    failed = [row for row in found if "error" in row]
    print(f"{len(found) - len(failed)} of {len(found)} builds compile and fit")
    return 1 if failed or not found else 0


if __name__ == "__main__":
    sys.exit(main())
