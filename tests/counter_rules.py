"""How an H200's counters may differ from the thread runner's predictions, and why.

docs/counting.md says the same in words. Every bound follows from the trace, or from another
counter of the same launch.
"""

from typing import Any

from arbitration import OWN

from simulator.threads import Report
from simulator.threads.counts import BYPASS
from simulator.threads.passes import BANK_BYTES
from simulator.threads.report import (
    ARBITRATION,
    OWN_PASSES,
    PRODUCT_PASSES,
    SHARED_CONFLICTS,
    SHARED_INSTRUCTIONS,
    SHARED_PASSES,
    Entry,
)

GLOBAL = "l1tex__t_sectors_pipe_lsu_mem_global_op_"
REPLAYS, A_FEW = 0.15, 8
"""ncu runs a kernel again for each few counters: timing, and what meets, differs a little."""
AT_ONCE = 4
"""4-byte neighbours that one instruction reads or writes at most."""
CODE_BYTES = 128 * 1024
"""What a launch reads from DRAM besides its tensors: its instructions and constants."""
FILLERS = 3
"""Shared loads that the assembler puts before a run of cp.async, and that move nothing."""
OPERATIONS = {"ld": "load", "st": "store"}
COPIES = "smsp__inst_executed_op_ldgsts.sum"
"""Instructions that start an asynchronous copy."""
COMBINED = {
    "hopper_forward",
    "hopper_backward",
    "hopper_backward_wide",
    "list_tiles",
    "aux_gradient",
    "tensor_core_gradients",
}
"""Kernels, besides those of packed batches, of which the compiler reads and writes neighbours at
once and keeps what it read: ``sA[i]``, that is; what an intrinsic of PTX says stays as it is."""
MERGED = {
    "flash1_backward": ("sLse", "sDelta"),
    "rows_forward": ("p * sV[r, c]",),
    "registers_forward": ("rQ[c] * sK[key + r, c]", "p * sV[key + r, c]"),
}
"""Shared arrays, or reads of them, whose neighbouring fours the compiler reads at once, one value
for all lanes: a quarter of the instructions, of two passes each."""
PREDICATED = {
    "list_tiles": {
        "sHighest[warp])": "sHighest[WARPS + warp])",
        "first + sTiles[other]": "sWork[other] - work",
    }
}
"""Loads of shared memory in a short branch, and one beside it that all warps execute. The compiler
makes the branch a predicate: a warp of which no thread takes it executes the load, without a pass.
"""
PREDICATED_COPIES = {"tensor_core_gradients": "copy4_async("}
"""And copies of numbers of rows (cp.async), which at least half of a block's warps take wherever it
is counted: a predicate may make the others execute as many, without a byte."""
HOISTED = ("mask_aux", "range_aux")
"""Arrays that masks read, for every row or element; the compiler keeps what it read before."""


def predicted(launch: Any, report: Report) -> dict[str, int]:
    """The runner's numbers, with loads of `MERGED` arrays merged."""
    found = report.hardware()
    for merged in MERGED.get(launch.name, ()):
        entries = [
            entry
            for entry in report.entries
            if (entry.memory.space, entry.site.operation) == ("shared", "load")
            and (entry.memory.name == merged or f"+= {merged}" in entry.site.place.text)
        ]
        assert entries, merged
        for count in (entry.count for entry in entries):
            assert count.instructions == count.passes
            found[f"{SHARED_INSTRUCTIONS}ld.sum"] -= 3 * count.instructions // 4
            found[f"{SHARED_PASSES}ld.sum"] -= count.passes // 2
            found[f"{OWN_PASSES}ld.sum"] -= count.passes // 2
    return found


def bounds(metric: str, value: int, launch, problem: dict, counters, report) -> tuple[float, float]:
    """Least and most that a counter may be whose prediction is `value`."""
    if metric.startswith(GLOBAL):
        return _of_global(metric, value, counters, report)
    if metric.startswith(SHARED_INSTRUCTIONS) and metric[-6:-4] in OPERATIONS:
        name = metric[-6:-4]
        fewer = less(report, launch, problem, OPERATIONS[name], "instructions")
        if name == "st" and fewer:  # some by generic addresses, which have a counter of their own
            fewer += counters["smsp__inst_executed_op_generic_st.sum"]
        more = fillers(counters) + skipped(launch, report) if name == "ld" else 0
        return value - fewer, value + more
    if metric.startswith(OWN_PASSES) and metric[-6:-4] in OPERATIONS:
        return value - less(report, launch, problem, OPERATIONS[metric[-6:-4]], "passes"), value
    if metric.startswith((SHARED_PASSES, SHARED_CONFLICTS)):
        return _of_passes(metric, value, launch, problem, counters, report)
    if metric == COPIES and launch.name in PREDICATED_COPIES:
        text = PREDICATED_COPIES[launch.name]
        taken = [entry for entry in report.entries if text in entry.site.place.text]
        return value, value + sum(e.count.instructions for e in taken if e.memory.space == "shared")
    return value, value


def _of_global(metric, value, counters, report) -> tuple[float, float]:
    """A thread whose turn has not come loads again and again: a sector by one more instruction."""
    if metric != f"{GLOBAL}ld.sum":
        return value, value
    loads = [e for e in report.entries if (e.memory.space, e.site.operation) == ("global", "load")]
    kept = sum(e.count.sectors for e in loads if e.memory.name.startswith(HOISTED))
    again = 0
    if any(e.site.traffic == "acquire" for e in loads):
        once = sum(e.count.instructions for e in loads if e.site.traffic not in BYPASS)
        again = sum(counters[f"smsp__inst_executed_op_{x}_ld.sum"] for x in ("global", "generic"))
        again = max(0, again - once)
    return value - kept, value + again


def _of_passes(metric, value, launch, problem, counters, report) -> tuple[float, float]:
    """Those of the instructions' own addresses and, at most, as many as are called arbitration.

    Passes of wgmma over its operands hold up accesses too, and are no conflict.
    """
    name = metric[-6:-4]
    met = counters[ARBITRATION] and (1 + REPLAYS) * counters[ARBITRATION] + A_FEW
    if metric.startswith(SHARED_CONFLICTS):
        fewer = less(report, launch, problem, OPERATIONS[name], "passes")
        return max(0, value - fewer), value + met
    own = sum(counters[f"{OWN_PASSES}{one}.sum"] for one in OWN[name])
    return own, own + met + counters[PRODUCT_PASSES]


def fillers(counters) -> int:
    """At most so many shared loads never happen: ``@!PT LDS RZ, [RZ]``, before a run of cp.async.

    They are executed, but move nothing and take no pass. A run is one copy or more.
    """
    return FILLERS * counters[COPIES]


def skipped(launch: Any, report: Report) -> int:
    """At most so many shared loads are executed by warps of which no thread takes the branch."""

    def instructions(text: str) -> int:
        entries = [entry for entry in report.entries if text in entry.site.place.text]
        loads = [e for e in entries if (e.memory.space, e.site.operation) == ("shared", "load")]
        assert loads, text
        return sum(entry.count.instructions for entry in loads)

    pairs = PREDICATED.get(launch.name, {}).items()
    return sum(instructions(beside) - instructions(branch) for branch, beside in pairs)


def less(report: Report, launch, problem: dict, operation: str, part: str) -> int:
    """Instructions or passes that a kernel may save whose neighbours the compiler combines."""
    if launch.name not in COMBINED and "seqlens_q" not in problem:
        return 0
    found = 0
    for entry in report.entries:
        if entry.site.operation == operation and is_plain(entry):
            count = getattr(entry.count, part)
            found += count - count // AT_ONCE
    return found


def is_plain(entry: Entry) -> bool:
    """Whether an access of shared memory is written as ``sA[i]``: no intrinsic, or a 4-byte load.

    (Loads of words have no intrinsic; they may be of another type than their memory.)
    """
    site = entry.site
    one = not site.size or (site.operation == "load" and site.size == BANK_BYTES)
    return entry.memory.space == "shared" and not site.traffic and one
