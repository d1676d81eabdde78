"""Other right ways to answer formulas and tile programs, and some more slips."""

import math

import numpy as np


def standard_by_operation(N, M, d):
    moved = 0
    for rows, depth, columns in ((N, d, M), (N, 1, M), (N, M, d)):
        is_softmax = depth == 1
        moved += rows * columns  # what is written
        moved += rows * columns if is_softmax else rows * depth + depth * columns
    return moved


def standard_as_float(N, M, d):
    return 2.0 * d * (N + M) + 4.0 * N * M


def break_even_from_the_inequality(d):
    return math.floor(d / 2 + 1)


def break_even_counted(d):
    N = 64 * d * d
    return next(B for B in range(1, 2 * d) if 2 * d * N * N < 4 * N * N * B)


def break_even_halved_twice(d):
    return d // 4 + 1


def tallest_in_closed_form(d, sram_bytes):
    return (sram_bytes - 2 * 2 * 16 * d) // (2 * d * 16) * 16


def tallest_from_above(d, sram_bytes):
    B_r = sram_bytes // (2 * d)
    while B_r % 16 or 2 * d * (B_r + 32) > sram_bytes:
        B_r -= 1
    return B_r


def double_q_in_steps(gpu):
    for head, _, rows in gpu.query_tile_grid():
        sQ = gpu.load("load", gpu.tensor("Q")[head, rows])
        rO = gpu.in_registers("O", sQ.shape, 0.0)
        for _ in range(2):
            gpu.compute("O = O + Q", (rO,), (rO, sQ), lambda O, Q: O + Q)
        gpu.free(sQ)
        gpu.store("store", gpu.tensor("O")[head, rows], rO)


def double_q_from_two_blocks_of_columns(gpu):
    Q, O = gpu.tensor("Q"), gpu.tensor("O")
    for head, _, rows in gpu.query_tile_grid():
        for columns in (slice(0, 4), slice(4, 8)):
            part = gpu.load("load", Q[head, rows, columns])
            gpu.compute("Q = 2 Q", (part,), (part,), lambda q: q / np.float32(0.5))
            gpu.store("store", O[head, rows, columns], part)
            gpu.free(part)


def scores_from_scaled_queries(gpu):
    Q, K, S = (gpu.tensor(name) for name in "QKS")
    for head, _, rows in gpu.query_tile_grid():
        sQ = gpu.load("load Q_i", Q[head, rows])
        gpu.compute("Q = scale Q", (sQ,), (sQ,), lambda q: q * np.float32(gpu.scale))
        for _, cols in gpu.all_key_tiles():
            sK = gpu.load("load K_j", K[cols])
            rS = gpu.in_registers("S", (sQ.shape[0], sK.shape[0]))
            gpu.product("S = Q Kᵀ", rS, sQ, sK.T)
            gpu.free(sK)
            gpu.store("store S_ij", S[head, rows, cols], rS)
        gpu.free(sQ)


def row_max_from_the_first_tile(gpu):
    S, out = gpu.tensor("S"), gpu.tensor("m")
    for head, _, rows in gpu.query_tile_grid():
        top = None
        for _, cols in gpu.all_key_tiles():
            sS = gpu.load("load", S[head, rows, cols])
            if top is None:
                top = gpu.in_registers("m", sS.shape[:1])
                gpu.compute("m", (top,), (sS,), lambda s: s.max(axis=1))
            else:
                gpu.compute("m", (top,), (sS, top), lambda s, m: np.c_[s, m].max(axis=1))
            gpu.free(sS)
        gpu.store("store", out[head, rows], top)


def row_max_by_the_least(gpu):
    for head, _, rows in gpu.query_tile_grid():
        low = gpu.in_registers("-m", (rows.stop - rows.start,), np.inf)
        for _, cols in gpu.all_key_tiles():
            sS = gpu.load("load", gpu.tensor("S")[head, rows, cols])
            gpu.compute("-S", (sS,), (sS,), np.negative)
            gpu.compute("low", (low,), (low, sS), lambda m, s: np.minimum(m, s.min(axis=1)))
            gpu.free(sS)
        gpu.compute("m", (low,), (low,), np.negative)
        gpu.store("store", gpu.tensor("m")[head, rows], low)


def more(m, l, s):
    top = np.maximum(m, s.max(axis=1))
    return top, l * np.exp(m - top) + np.exp(s - top[:, None]).sum(axis=1)


def softmax_rows_by_lse(gpu):
    S, P = gpu.tensor("S"), gpu.tensor("P")
    for head, _, rows in gpu.query_tile_grid():
        m = gpu.in_registers("m", (rows.stop - rows.start,), -np.inf)
        l = gpu.in_registers("l", m.shape, 0.0)
        for _, cols in gpu.all_key_tiles():
            sS = gpu.load("first", S[head, rows, cols])
            gpu.compute("m, l", (m, l), (m, l, sS), more)
            gpu.free(sS)
        gpu.compute("lse", (m,), (m, l), lambda m, l: m + np.log(l))
        for _, cols in gpu.all_key_tiles():
            sS = gpu.load("again", S[head, rows, cols])
            gpu.compute("P", (sS,), (sS, m), lambda s, lse: np.exp(s - lse[:, None]))
            gpu.store("store", P[head, rows, cols], sS)
            gpu.free(sS)


def weighted_values_first(gpu):
    P, V, O = (gpu.tensor(name) for name in "PVO")
    for head, _, rows in gpu.query_tile_grid():
        acc = gpu.in_registers("O", (rows.stop - rows.start, gpu.v), 0.0)
        for _, cols in gpu.all_key_tiles():
            sV = gpu.load("V", V[cols])
            sP = gpu.load("P", P[head, rows, cols])
            gpu.product("O += P V", acc, sP, sV, add=True)
            gpu.free(sP, sV)
        gpu.store("O", O[head, rows], acc)


def weighted_values_part_by_part(gpu):
    P, V, O = (gpu.tensor(name) for name in "PVO")
    for head, _, rows in gpu.query_tile_grid():
        acc = gpu.in_registers("O", (rows.stop - rows.start, gpu.v), 0.0)
        part = gpu.in_registers("O of a tile", acc.shape)
        for _, cols in gpu.all_key_tiles():
            sP, sV = gpu.load("P", P[head, rows, cols]), gpu.load("V", V[cols])
            gpu.product("P V", part, sP, sV)
            gpu.compute("O = O + part", (acc,), (acc, part), np.add)
            gpu.free(sP, sV)
        gpu.store("O", O[head, rows], acc)


def weighted_values_of_the_last_tile(gpu):
    P, V, O = (gpu.tensor(name) for name in "PVO")
    for head, _, rows in gpu.query_tile_grid():
        acc = gpu.in_registers("O", (rows.stop - rows.start, gpu.v), 0.0)
        for _, cols in gpu.all_key_tiles():
            sP, sV = gpu.load("P", P[head, rows, cols]), gpu.load("V", V[cols])
            gpu.product("O = P V", acc, sP, sV)
            gpu.free(sP, sV)
        gpu.store("O", O[head, rows], acc)


ANSWERS = {
    "predict_standard": {"right": [standard_by_operation, standard_as_float], "wrong": []},
    "break_even": {
        "right": [break_even_from_the_inequality, break_even_counted],
        "wrong": [(break_even_halved_twice, r"count|more|V|K")],
    },
    "tallest_tile": {"right": [tallest_in_closed_form, tallest_from_above], "wrong": []},
    "double_q": {"right": [double_q_in_steps, double_q_from_two_blocks_of_columns], "wrong": []},
    "scores": {"right": [scores_from_scaled_queries], "wrong": []},
    "row_max": {"right": [row_max_from_the_first_tile, row_max_by_the_least], "wrong": []},
    "softmax_rows": {"right": [softmax_rows_by_lse], "wrong": []},
    "weighted_values": {
        "right": [weighted_values_first, weighted_values_part_by_part],
        "wrong": [(weighted_values_of_the_last_tile, r"last tile")],
    },
}
