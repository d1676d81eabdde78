"""``cp.async``: copies of one thread that are waited for in groups, in the order of commits."""

from __future__ import annotations

from typing import Any

from .context import Context
from .log import CODE_BITS, LOAD, NOWHERE

CODE = (1 << CODE_BITS) - 1


class CopyGroups:
    """``cp.async`` of the running thread: copies are waited for in groups."""

    def __init__(self, context: Context):
        self.context = context

    def _channel(self):
        return ("cp.async", self.context.thread.tid)

    def copy(self, emulate, operands) -> Any:
        """Run `emulate`, whose accesses are copies of the group that is open."""
        with self.context.grouped_copy(self._channel()):
            return self._in_step(emulate, operands)

    def _in_step(self, emulate, operands) -> Any:
        """A copy that only writes zeros logs that it read nothing, as its warp's others read."""
        runtime = self.context.runtime
        words = runtime.log.words
        start = len(words)
        result = emulate(*operands)
        if len(words) == start + 1:
            site: Any = runtime.log.sites[words[start] & CODE]
            words.insert(start, NOWHERE << CODE_BITS | runtime.code(LOAD, site.size))
        return result

    def commit(self) -> None:
        """Close the group; the next copies are another one."""
        self.context.commit(self._channel())

    def wait(self, pending: int) -> None:
        """All groups are finished but the last `pending` ones."""
        self.context.wait_groups(self._channel(), pending)

    def wait_all(self) -> None:
        """All copies are finished, committed or not."""
        self.commit()
        self.wait(0)
