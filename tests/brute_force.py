"""A third count: walk every block, tile by tile, and write down what docs/counting.md says.

It knows no sums: visited tiles come from the boolean predicate, evaluated pair by pair of
positions, and every tile is a length. Slow on purpose; it shares no code with `simulator`
but the record it fills.
"""

from functools import partial
from itertools import pairwise

import numpy as np

from simulator.counts import Counts

FOUR_BYTES = {"LSE", "m", "l", "delta", "dLSE"}
ONE_BYTE = {"mask", "dropout"}


class Meter:
    """Adds up what one program does; `here` is what is in SRAM, by name, in (elements, bytes)."""

    def __init__(self, problem):
        self.d, self.v = problem.head_dim, problem.head_dim_v
        self.problem = problem
        self.reads, self.writes, self.here = {}, {}, {}
        self.bytes = self.loaded = self.stored = self.peak = 0
        self.flops = self.exps = self.adds = 0

    def size(self, tensor):
        if tensor in FOUR_BYTES:
            return 4
        return 1 if tensor in ONE_BYTE else self.problem.itemsize

    def from_hbm(self, tensor, n):
        self.reads[tensor] = self.reads.get(tensor, 0) + n
        self.bytes += n * self.size(tensor)

    def to_hbm(self, tensor, n):
        self.writes[tensor] = self.writes.get(tensor, 0) + n
        self.bytes += n * self.size(tensor)

    def place(self, tensor, n):
        """A tile that appears in SRAM: stored there once."""
        assert tensor not in self.here
        self.here[tensor] = n
        self.stored += n
        self.peak = max(self.peak, sum(n * self.size(t) for t, n in self.here.items()))

    def load(self, **tiles):
        for tensor, n in tiles.items():
            self.from_hbm(tensor, n)
            self.place(tensor, n)

    def use(self, *tensors):
        for tensor in tensors:
            self.loaded += self.here[tensor]

    def change(self, *tensors):
        """Result of a step, written over a tile in SRAM."""
        for tensor in tensors:
            self.stored += self.here[tensor]

    def store_from_sram(self, tensor):
        self.use(tensor)
        self.to_hbm(tensor, self.here[tensor])

    def product(self, rows, cols, depth, *operands):
        self.use(*operands)
        self.flops += 2 * rows * cols * depth

    def free(self, *tensors):
        for tensor in tensors:
            del self.here[tensor]

    def counts(self, capacity=True):
        assert not self.here
        return Counts(
            self.reads,
            self.writes,
            hbm_bytes=self.bytes,
            sram_load_elements=self.loaded,
            sram_store_elements=self.stored,
            sram_peak_bytes=self.peak if capacity else None,
            matmul_flops=self.flops,
            exp_count=self.exps,
            add_flops=self.adds,
        )


def lengths(n, tile):
    edges = [*range(0, n, tile), n] if n else [0]
    return [b - a for a, b in pairwise(edges)]


def sees(problem, batch, head):
    """The (queries, own keys) predicate, every pair of positions evaluated."""
    shape = problem.seqlen_q, problem.key_length(batch)
    mask = problem.visibility
    if mask is None:
        return np.ones(shape, bool)
    q_idx, k_idx = np.arange(shape[0])[:, None], np.arange(shape[1])[None, :]
    return np.broadcast_to(mask.keep(batch, head, q_idx, k_idx, mask.aux), shape)


def visited_pairs(problem, tile_m, tile_n, batch, head):
    """Pairs of tiles in which some query sees some key."""
    q_idx, k_idx = np.nonzero(sees(problem, batch, head))
    return set(zip((q_idx // tile_m).tolist(), (k_idx // tile_n).tolist(), strict=True))


def count(program, problem, tile_m, tile_n, direction, dlse=False, only=None, visits=None):
    """Counts of one head (`only` = (batch, head)) or, without `only`, of all.

    `visits(batch, head)` gives the set of visited (i, j) where the predicate does not.
    """
    if visits is None:
        visits = partial(visited_pairs, problem, tile_m, tile_n)
    meter = Meter(problem)
    by_kv_head = direction == "backward" and only is None
    group = problem.group if by_kv_head else 1
    if only is None:
        starts = range(0, problem.num_heads, group)
        groups = [(b, range(h, h + group)) for b in range(problem.batch) for h in starts]
    else:
        groups = [(only[0], [only[1]])]
    for batch, heads in groups:
        rows = lengths(problem.seqlen_q, tile_m)
        cols = lengths(problem.key_length(batch), tile_n)
        seen = [visits(batch, head) for head in heads]
        steps = STEPS[program, direction]
        if program in IDEAL:
            steps(meter, sum(rows), sum(cols), len(heads))
        elif direction == "backward":
            steps(meter, rows, cols, seen, dlse)
        else:
            steps(meter, rows, cols, seen[0])
    return meter.counts(capacity=program not in IDEAL)


def flash2_forward(m, rows, cols, seen):
    for i, r in enumerate(rows):
        mine = [c for j, c in enumerate(cols) if (i, j) in seen]
        if mine:
            m.load(Q=r * m.d)
            for c in mine:
                m.load(K=c * m.d)
                m.product(r, c, m.d, "Q", "K")
                m.exps += r + r * c
                m.load(V=c * m.v)
                m.product(r, m.v, c, "V")
                m.free("K", "V")
            m.free("Q")
        m.to_hbm("O", r * m.v)
        m.to_hbm("LSE", r)


def delta_pass(m, rows, seen, dlse):
    for _ in seen:
        for r in rows:
            m.load(O=r * m.v, dO=r * m.v)
            if dlse:
                m.load(dLSE=r)
            m.use(*m.here)
            m.to_hbm("delta", r)
            m.free(*list(m.here))


def key_tile_blocks(m, rows, cols, seen, with_dq):
    for j, c in enumerate(cols):
        visiting = [r for head in seen for i, r in enumerate(rows) if (i, j) in head]
        if visiting:
            m.load(K=c * m.d, V=c * m.v)
            for r in visiting:
                m.load(Q=r * m.d, dO=r * m.v, LSE=r, delta=r)
                m.product(r, c, m.d, "Q", "K")
                m.exps += r * c
                m.use("LSE")
                m.product(c, m.v, r, "dO")
                m.product(r, c, m.v, "dO", "V")
                m.use("delta")
                m.product(c, m.d, r, "Q")
                if with_dq:
                    m.product(r, m.d, c, "K")
                    m.from_hbm("dQ", r * m.d)
                    m.to_hbm("dQ", r * m.d)
                    m.adds += r * m.d
                m.free("Q", "dO", "LSE", "delta")
            m.free("K", "V")
        m.to_hbm("dK", c * m.d)
        m.to_hbm("dV", c * m.v)


def flash2_backward(m, rows, cols, seen, dlse):
    delta_pass(m, rows, seen, dlse)
    for _ in seen:
        for r in rows:
            m.to_hbm("dQ", r * m.d)
    key_tile_blocks(m, rows, cols, seen, with_dq=True)


def flash2_two_kernel_backward(m, rows, cols, seen, dlse):
    delta_pass(m, rows, seen, dlse)
    for head in seen:
        for i, r in enumerate(rows):
            mine = [c for j, c in enumerate(cols) if (i, j) in head]
            if mine:
                m.load(Q=r * m.d, dO=r * m.v, LSE=r, delta=r)
                for c in mine:
                    m.load(K=c * m.d, V=c * m.v)
                    m.product(r, c, m.d, "Q", "K")
                    m.exps += r * c
                    m.use("LSE")
                    m.product(r, c, m.v, "dO", "V")
                    m.use("delta")
                    m.product(r, m.d, c, "K")
                    m.free("K", "V")
                m.free("Q", "dO", "LSE", "delta")
            m.to_hbm("dQ", r * m.d)
    key_tile_blocks(m, rows, cols, seen, with_dq=False)


def flash1_forward(m, rows, cols, seen):
    for r in rows:
        m.to_hbm("O", r * m.v)
        m.to_hbm("l", r)
        m.to_hbm("m", r)
    for j, c in enumerate(cols):
        visiting = [r for i, r in enumerate(rows) if (i, j) in seen]
        if not visiting:
            continue
        m.load(K=c * m.d, V=c * m.v)
        for r in visiting:
            m.load(Q=r * m.d, O=r * m.v, l=r, m=r)
            m.product(r, c, m.d, "Q", "K")
            m.place("S", r * c)
            m.use("S")
            m.change("S")
            m.exps += r * c
            m.use("m", "l")
            m.exps += 2 * r
            m.product(r, m.v, c, "S", "V")
            m.use("O")
            m.change("O")
            m.store_from_sram("O")
            m.to_hbm("l", r)
            m.to_hbm("m", r)
            m.free("Q", "O", "l", "m", "S")
        m.free("K", "V")
    for r in rows:
        m.load(m=r, l=r)
        m.use("m", "l")
        m.to_hbm("LSE", r)
        m.free("m", "l")


def flash1_backward(m, rows, cols, seen, dlse):
    for _ in seen:
        for r in rows:
            m.to_hbm("dQ", r * m.d)
    for j, c in enumerate(cols):
        visiting = [r for head in seen for i, r in enumerate(rows) if (i, j) in head]
        if not visiting:
            m.to_hbm("dK", c * m.d)
            m.to_hbm("dV", c * m.v)
            continue
        m.load(K=c * m.d, V=c * m.v)
        m.place("dK", c * m.d)
        m.place("dV", c * m.v)
        for r in visiting:
            m.load(Q=r * m.d, O=r * m.v, dO=r * m.v, dQ=r * m.d, LSE=r)
            if dlse:
                m.load(dLSE=r)
            m.product(r, c, m.d, "Q", "K")
            m.place("S", r * c)
            m.use("S", "LSE")
            m.change("S")
            m.exps += r * c
            m.product(c, m.v, r, "S", "dO", "dV")
            m.change("dV")
            m.product(r, c, m.v, "dO", "V")
            m.place("dP", r * c)
            m.use("dO", "O")
            m.use("S", "dP", *(["dLSE"] if dlse else []))
            m.change("dP")
            m.product(r, m.d, c, "dP", "K", "dQ")
            m.change("dQ")
            m.product(c, m.d, r, "dP", "Q", "dK")
            m.change("dK")
            m.store_from_sram("dQ")
            m.free(*[name for name in m.here if name not in ("K", "V", "dK", "dV")])
        m.store_from_sram("dK")
        m.store_from_sram("dV")
        m.free("K", "V", "dK", "dV")


def tiled_forward(m, rows, cols, seen):
    for r in rows:
        for c in cols:
            m.load(Q=r * m.d, K=c * m.d)
            m.product(r, c, m.d, "Q", "K")
            m.to_hbm("S", r * c)
            m.free("Q", "K")
    for r in rows:
        for second in (False, True):
            for c in cols:
                m.load(S=r * c)
                m.use("S")
                m.exps += r * c if second else r * c + r
                if second:
                    m.to_hbm("P", r * c)
                m.free("S")
        m.to_hbm("LSE", r)
    for r in rows:
        for c in cols:
            m.load(P=r * c, V=c * m.v)
            m.product(r, m.v, c, "P", "V")
            m.free("P", "V")
        m.to_hbm("O", r * m.v)


def tiled_backward(m, rows, cols, seen, dlse):
    heads = range(len(seen))
    for c in cols:
        for _ in heads:
            for r in rows:
                m.load(P=r * c, dO=r * m.v)
                m.product(c, m.v, r, "P", "dO")
                m.free("P", "dO")
        m.to_hbm("dV", c * m.v)
    for _ in heads:
        for r in rows:
            for c in cols:
                m.load(dO=r * m.v, V=c * m.v)
                m.product(r, c, m.v, "dO", "V")
                m.to_hbm("dP", r * c)
                m.free("dO", "V")
        for r in rows:
            if dlse:
                m.load(dLSE=r)
                m.use("dLSE")
                m.free("dLSE")
            for second in (False, True):
                for c in cols:
                    m.load(P=r * c, dP=r * c)
                    m.use("P", "dP")
                    if second:
                        m.to_hbm("dS", r * c)
                    m.free("P", "dP")
        for r in rows:
            for c in cols:
                m.load(dS=r * c, K=c * m.d)
                m.product(r, m.d, c, "dS", "K")
                m.free("dS", "K")
            m.to_hbm("dQ", r * m.d)
    for c in cols:
        for _ in heads:
            for r in rows:
                m.load(dS=r * c, Q=r * m.d)
                m.product(c, m.d, r, "dS", "Q")
                m.free("dS", "Q")
        m.to_hbm("dK", c * m.d)


# Baselines: (tensors read, tensors written) of each operation, in order.
ALGORITHM0 = (
    [("Q K", "S"), ("S", "P"), ("P V", "O")],
    [("P dO", "dV"), ("dO V", "dP"), ("P dP", "dS"), ("dS K", "dQ"), ("dS Q", "dK")],
)
FUSED_SOFTMAX = (
    [("Q K", "P"), ("P V", "O")],
    [("P dO", "dV"), ("P dO O V", "dS"), ("dS K", "dQ"), ("dS Q", "dK")],
)
WITH_MASK_AND_DROPOUT = (
    [("Q K", "S"), ("S mask", "S"), ("S", "P"), ("P", "P dropout"), ("P V", "O")],
    [
        ("P dO", "dV"),
        ("dO V", "dP"),
        ("dP dropout", "dP"),
        ("P dP", "dS"),
        ("dS mask", "dS"),
        ("dS K", "dQ"),
        ("dS Q", "dK"),
    ],
)


def operations(table):
    def walk(m, queries, keys, heads):
        shapes = {"Q": (queries, m.d), "O": (queries, m.v), "K": (keys, m.d), "V": (keys, m.v)}
        shapes |= {"d" + name: shape for name, shape in shapes.items()}
        for head in range(heads):
            for read, written in table:
                for tensor in read.split():
                    a, b = shapes.get(tensor, (queries, keys))
                    m.load(**{tensor: a * b})
                    m.use(tensor)
                    m.free(tensor)
                for tensor in written.split():
                    if head and tensor in ("dK", "dV"):
                        continue
                    a, b = shapes.get(tensor, (queries, keys))
                    m.place(tensor, a * b)
                    m.store_from_sram(tensor)
                    m.free(tensor)
            area = queries * keys
            forward = table[-1][1] == "O"
            m.flops += (2 if forward else 4) * area * (m.d + m.v)
            m.exps += area if forward else 0

    return walk


IDEAL = {
    "algorithm0": ALGORITHM0,
    "fused_softmax": FUSED_SOFTMAX,
    "with_mask_and_dropout": WITH_MASK_AND_DROPOUT,
}
STEPS = {
    ("flash2", "forward"): flash2_forward,
    ("flash2", "backward"): flash2_backward,
    ("flash2_two_kernel", "forward"): flash2_forward,
    ("flash2_two_kernel", "backward"): flash2_two_kernel_backward,
    ("flash1", "forward"): flash1_forward,
    ("flash1", "backward"): flash1_backward,
    ("tiled", "forward"): tiled_forward,
    ("tiled", "backward"): tiled_backward,
}
for name, (forward, backward) in IDEAL.items():
    STEPS[name, "forward"] = operations(forward)
    STEPS[name, "backward"] = operations(backward)
