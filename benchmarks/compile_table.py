"""Compile the listed builds without a GPU and write what each needs.

python benchmarks/compile_table.py benchmarks/results/compile_table.json
"""

import argparse
import json
from pathlib import Path

from flash_numba.kernels.builds import listed_builds, prepare
from flash_numba.kernels.offline import assemble, compile_ptx, ptxas_release


def main():
    """Build all, print a line for each, write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    rows = []
    options = parser.parse_args()
    for build in listed_builds():
        kernel, signature, shared_bytes = prepare(build)
        found = assemble(compile_ptx(kernel, signature, build.cc), build.cc)
        rows.append(build._asdict() | found._asdict() | {"shared_bytes": shared_bytes})
        print(*build, *found, shared_bytes, flush=True)
    table = {"ptxas": ptxas_release(), "rows": rows}
    options.path.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
