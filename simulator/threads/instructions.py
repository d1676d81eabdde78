"""Calls the emulations of intrinsics (see the package's docstring for what they may declare)."""

from __future__ import annotations

from .context import Context
from .copy_groups import CopyGroups
from .engines import ENGINES, Call
from .errors import fail
from .runtime import PAUSE, Runtime

SCOPES = {"thread": 1, "warp": 32, "warpgroup": 128}
"""Threads that run an instruction together."""


def instruction(runtime: Runtime, operation, name: str):
    """What a rewritten kernel calls instead of `operation`: ``call(position, *operands)``.

    `name` is what the kernel calls it: its typing function's name may be that of many.
    """
    scope = getattr(operation, "scope", "thread")
    if scope not in SCOPES:
        raise fail("unsupported", f"{name} has scope {scope!r}, allowed are {', '.join(SCOPES)}")
    wanted = getattr(operation, "context", False)
    context = Context(runtime)
    given = (context,) if wanted else ()
    traffic = getattr(operation, "traffic", "")

    def at(position):
        runtime.here, runtime.traffic, runtime.instruction = position, traffic, name

    emulate = operation.emulate
    if traffic in ENGINES:
        if hasattr(operation, "fetch") or hasattr(operation, "put"):
            raise fail("unsupported", f"{name}: {traffic} makes all accesses in `emulate`")
        count = getattr(operation, "instructions", 1)
        emulate = _as_a_whole(runtime, emulate, SCOPES[scope], count)
    if scope == "thread":
        return _by_thread(runtime, emulate, traffic, given, at)
    return _together(runtime, operation, emulate, SCOPES[scope], given, at, name)


def _as_a_whole(runtime: Runtime, emulate, threads: int, instructions: int):
    """`emulate`, whose accesses are those of so many instructions that start an engine."""

    def as_a_whole(*operands):
        start = len(runtime.log.words)
        result = emulate(*operands)
        if runtime.counting:
            first = (runtime.members or [runtime.thread])[0].tid
            stop = len(runtime.log.words)
            runtime.calls.append(Call(start, stop, first, threads, instructions))
        return result

    return as_a_whole


def _by_thread(runtime, emulate, traffic, given, at):
    context = Context(runtime)
    groups = CopyGroups(context)

    def by_thread(position, *operands):
        at(position)
        result = emulate(*given, *operands)
        runtime.traffic = ""
        return result

    def copy(position, *operands):
        at(position)
        result = groups.copy(emulate, (*given, *operands))
        runtime.traffic = ""
        return result

    def acquire(position, array, index, *operands):
        result, sync = by_thread(position, array, index, *operands), context.sync_of(array, index)
        context.acquire(sync)
        if runtime.thread.acquired == (sync, result):  # it turns until that changes
            runtime.hub.switch(PAUSE)
        runtime.thread.acquired = sync, result
        return result

    def release(position, array, index, *operands):
        at(position)
        context.release(context.sync_of(array, index))
        return by_thread(position, array, index, *operands)

    def commit(position, *operands):
        at(position)
        groups.commit()

    def wait_group(position, pending, *operands):
        at(position)
        groups.wait(int(pending))

    def wait_all(position, *operands):
        at(position)
        groups.wait_all()

    special = {
        "acquire": acquire,
        "release": release,
        "cp.async": copy,
        "cp.async.commit_group": commit,
        "cp.async.wait_group": wait_group,
        "cp.async.wait_all": wait_all,
    }
    return special.get(traffic, by_thread)


def _together(runtime, operation, emulate, count, given, at, name):
    """A warp or warpgroup: each thread may fetch, then one emulation, then each may put."""
    fetch, put = getattr(operation, "fetch", None), getattr(operation, "put", None)

    def together(position, *operands):
        at(position)
        payload = operands if fetch is None else (fetch(*given, *operands),)
        runtime.traffic = ""

        def resolve(payloads):
            at(position)
            columns = list(zip(*payloads.values(), strict=True))
            results = emulate(*given, *columns)
            runtime.traffic = ""
            return dict(zip(payloads, results or [None] * len(payloads), strict=True))

        thread = runtime.thread
        first = thread.tid - thread.number % count
        members = ((1 << count) - 1) << first
        result = runtime.wait(name, position, members, payload, resolve)
        if put is None:
            return result
        at(position)
        put(*given, result, *operands)
        runtime.traffic = ""
        return None

    return together
