"""Barriers in shared memory that count arrivals and bytes: ``mbarrier`` (PTX ISA 9.0, 9.7.13.15).

A barrier is a 64-bit word. Its phase completes when as many threads have arrived as it was made
for, and as many bytes as they announced have come; then the next phase begins. A waiting thread
names the parity of the phase it waits for: 0 the first time, 1 the second, and so on. Waiting
for the parity of the phase before the first one returns at once.
"""

from typing import Any

from ..numba_cuda import types
from .assembly import as_int32, assembly, described, operandless, shared_address
from .emulation import barriers


def _operation(name, text, operands, emulate, doc) -> Any:
    """An instruction on barrier ``bars[index]`` with `operands` (0 or 1) further numbers."""

    def codegen(context, builder, signature, args):
        bars, index = signature.args[:2]
        where = shared_address(context, builder, bars, args[0], index, args[1])
        more = [
            as_int32(context, builder, kind, value)
            for kind, value in zip(signature.args[2:], args[2:], strict=True)
        ]
        assembly(builder, text, [where, *more])
        return context.get_dummy_value()

    def typing_of_two(typingctx, bars, index):
        return types.void(bars, index), codegen

    def typing_of_three(typingctx, bars, index, number):
        return types.void(bars, index, number), codegen

    typing = typing_of_three if operands else typing_of_two
    typing.__name__ = name
    return described(typing, emulate, doc)


barrier_init = _operation(
    "barrier_init",
    "mbarrier.init.shared::cta.b64 [$0], $1;",
    1,
    barriers.init,
    "``mbarrier.init``: ``barrier_init(bars, i, count)``, a barrier for `count` arrivals a phase.",
)
barrier_arrive = _operation(
    "barrier_arrive",
    "mbarrier.arrive.shared::cta.b64 _, [$0];",
    0,
    barriers.arrive,
    "``mbarrier.arrive`` (release): ``barrier_arrive(bars, i)``, one arrival.",
)
barrier_expect = _operation(
    "barrier_expect",
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;",
    1,
    barriers.expect,
    """``mbarrier.arrive.expect_tx``: ``barrier_expect(bars, i, size)``.

    One arrival, after `size` bytes more have been announced for the current phase.
    """,
)
barrier_wait = _operation(
    "barrier_wait",
    "{ .reg .pred done; WAIT_${:uid}: "
    "mbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1; "
    "@done bra DONE_${:uid}; bra WAIT_${:uid}; DONE_${:uid}: }",
    1,
    barriers.wait,
    """``mbarrier.try_wait.parity`` (acquire) in a loop: ``barrier_wait(bars, i, parity)``.

    Until the phase of that parity is complete; what was written before its arrivals, and the bytes
    that it counted, can be read then.
    """,
)


fence_barrier_init = operandless(
    "fence.mbarrier_init.release.cluster;",
    barriers.fence_init,
    "``fence.mbarrier_init``: the copy engine sees the barriers initialised before.",
)
fence_async = operandless(
    "fence.proxy.async.shared::cta;",
    barriers.fence_async,
    """``fence.proxy.async`` (9.7.13.4): the copy engine sees own writes to shared memory.

    Needed between ordinary stores and a bulk store or wgmma that reads them.
    """,
)
