"""What the producer tells the consumers: a *note* in shared memory for every query tile.

The producer alone works out which query tile comes next and which keys it sees. It writes that down
before it announces the tile's Q, whose barrier publishes it; the divisions that it takes are nobody
else's business, and a consumer that read its note knows all it needs until the tile's O is stored.
"""

from ..device.numba_cuda import cuda, room, types
from ..device.online_softmax import ALL_LANES
from .hopper_walk import Step

BATCH, HEAD, M_BLOCK, N_BLOCK, STOP, FULL_START, FULL_STOP, SEQLEN_K = range(8)
"""Numbers of a note: those of `hopper_walk.Step` (N_BLOCK: the first key tile).

After the last query tile BATCH is -1, and STOP says how many query tiles see no key."""
NOTES = 4
"""Notes that are kept. The producer is two query tiles ahead of a consumer at most, and a consumer
has stored O of the tile before the last when it says that it needs the last one's Q no longer."""
NOTES_SHAPE = NOTES, 8
"""Shape of the array in shared memory, int32."""


@room
def write_note(sNotes, number, step):
    """Note that the block's query tile `number` is that of `step`."""
    note = sNotes[number & (NOTES - 1)]
    note[BATCH], note[HEAD], note[M_BLOCK] = step.batch, step.head, step.m_block
    note[N_BLOCK], note[STOP], note[SEQLEN_K] = step.n_block, step.stop, step.seqlen_k
    note[FULL_START], note[FULL_STOP] = step.full_start, step.full_stop


@room
def write_end(sNotes, number, empty):
    """Note that there are only `number` query tiles that see a key, and `empty` that do not."""
    note = sNotes[number & (NOTES - 1)]
    for i in range(NOTES_SHAPE[1]):
        note[i] = 0
    note[BATCH], note[STOP] = -1, empty


@room
def told(sNotes, number, which):
    """A number of a note, handed out by lane 0: so the compiler knows that all lanes have it."""
    return cuda.shfl_sync(ALL_LANES, sNotes[number & (NOTES - 1), which], 0)


@room
def read_note(sNotes, number):
    """Query tile `number` of the block as a `Step` (its turn and `empty` are not told)."""
    zero = types.int32(0)
    return Step(
        zero,
        told(sNotes, number, BATCH),
        told(sNotes, number, HEAD),
        told(sNotes, number, M_BLOCK),
        told(sNotes, number, N_BLOCK),
        told(sNotes, number, STOP),
        told(sNotes, number, FULL_START),
        told(sNotes, number, FULL_STOP),
        told(sNotes, number, SEQLEN_K),
        zero,
    )


@room
def read_place(sNotes, number):
    """``(batch, head, m_block)`` of query tile `number`."""
    batch, head = told(sNotes, number, BATCH), told(sNotes, number, HEAD)
    return batch, head, told(sNotes, number, M_BLOCK)
