"""Formulas of the later notebooks."""

import math

import numpy as np


def parity_of_rounds(n, stages):
    return (n // stages) & 1


def parity_by_walking(n, stages):
    parity = 0
    for _ in range(n // stages):
        parity = 1 - parity
    return parity


def parity_odd_round(n, stages):
    return int(math.floor(n / stages) % 2 == 1)


def parity_of_the_tile(n, stages):
    return n % 2


def parity_is_the_place(n, stages):
    return n % stages


def parity_is_the_round(n, stages):
    return n // stages


def parity_of_the_producer(n, stages):
    return (n // stages + 1) % 2


def parity_one_late(n, stages):
    return (n + 1) // stages % 2


def stages_left_over(d, tile_m, tile_n, sram_bytes):
    left = sram_bytes - 4 * d * tile_m
    return left // (4 * d * tile_n) if left > 0 else 0


def stages_by_trying(d, tile_m, tile_n, sram_bytes):
    found = 0
    while 2 * d * (2 * tile_m + 2 * (found + 1) * tile_n) <= sram_bytes:
        found += 1
    return found


def stages_in_elements(d, tile_m, tile_n, sram_bytes):
    rows = sram_bytes // 2 // d
    return max(rows - 2 * tile_m, 0) // (2 * tile_n)


def stages_without_o(d, tile_m, tile_n, sram_bytes):
    return max(0, (sram_bytes - 2 * tile_m * d) // (4 * tile_n * d))


def stages_of_k_alone(d, tile_m, tile_n, sram_bytes):
    return max(0, (sram_bytes - 4 * tile_m * d) // (2 * tile_n * d))


def stages_in_fp32(d, tile_m, tile_n, sram_bytes):
    return max(0, (sram_bytes - 8 * tile_m * d) // (8 * tile_n * d))


def stages_rounded_up(d, tile_m, tile_n, sram_bytes):
    return max(0, math.ceil((sram_bytes - 4 * tile_m * d) / (4 * tile_n * d)))


def stages_below_zero(d, tile_m, tile_n, sram_bytes):
    return (sram_bytes - 4 * tile_m * d) // (4 * tile_n * d)


def stages_are_bytes(d, tile_m, tile_n, sram_bytes):
    return max(0, (sram_bytes - 2 * tile_m * d) // (2 * tile_n * d))


def triangle(N, B):
    T = math.ceil(N / B)
    return sum(range(1, T + 1))


def triangle_by_looking(N, B):
    return sum(j < min(i + B, N) for i in range(0, N, B) for j in range(0, N, B))


def triangle_from_the_square(N, B):
    T = (N + B - 1) // B
    return (T * T - T) // 2 + T


def half_of_the_tiles(N, B):
    return (-(-N // B)) ** 2 // 2


def half_of_the_matrix(N, B):
    return N * N / (2 * B * B)


def triangle_without_diagonal(N, B):
    T = -(-N // B)
    return T * (T - 1) // 2


def triangle_of_whole_tiles(N, B):
    T = N // B
    return T * (T + 1) // 2


def all_tiles(N, B):
    return (-(-N // B)) ** 2


def waste_of_squares(L1, L2, L3):
    longest = max(L1, L2, L3)
    return sum(longest**2 - length**2 for length in (L1, L2, L3))


def waste_by_factors(L1, L2, L3):
    longest = max(L1, L2, L3)
    return sum((longest - x) * (longest + x) for x in (L1, L2, L3))


def waste_by_sorting(L1, L2, L3):
    a, b, c = sorted((L1, L2, L3))
    return 2 * c * c - a * a - b * b


def waste_of_rows(L1, L2, L3):
    return 3 * max(L1, L2, L3) - (L1 + L2 + L3)


def waste_of_keys(L1, L2, L3):
    longest = max(L1, L2, L3)
    return sum(x * (longest - x) for x in (L1, L2, L3))


def waste_of_corners(L1, L2, L3):
    longest = max(L1, L2, L3)
    return sum((longest - x) ** 2 for x in (L1, L2, L3))


def waste_of_the_sum(L1, L2, L3):
    return 3 * max(L1, L2, L3) ** 2 - (L1 + L2 + L3) ** 2


def waste_if_first_is_longest(L1, L2, L3):
    return 3 * L1**2 - (L1**2 + L2**2 + L3**2)


def waste_of_padded_rows(L1, L2, L3):
    longest = max(L1, L2, L3)
    return longest * sum(longest - x for x in (L1, L2, L3))


def kept_added_up(layers, B, H, N, d):
    a_head = 0
    for columns, size in ((d, 2), (d, 2), (d, 2), (d, 2), (1, 4)):
        a_head += N * columns * size
    return layers * B * H * a_head


def kept_in_one_line(layers, B, H, N, d):
    return layers * B * H * N * (8 * d + 4)


def kept_by_tokens(layers, B, H, N, d):
    tokens = B * N
    return layers * tokens * H * 4 * (2 * d + 1)


def kept_without_o(layers, B, H, N, d):
    return layers * B * H * N * (6 * d + 4)


def kept_without_lse(layers, B, H, N, d):
    return layers * B * H * N * 8 * d


def kept_lse_in_fp16(layers, B, H, N, d):
    return layers * B * H * N * (8 * d + 2)


def kept_m_and_l(layers, B, H, N, d):
    return layers * B * H * N * (8 * d + 8)


def kept_with_p(layers, B, H, N, d):
    return layers * B * H * (8 * N * d + 2 * N * N)


def kept_of_one_layer(layers, B, H, N, d):
    return B * H * N * (8 * d + 4)


def kept_elements(layers, B, H, N, d):
    return layers * B * H * N * (4 * d + 1)


def flops_by_products(B, H, N, M, d, backward):
    products = 5 if backward == 1 else 2
    return products * 2 * B * H * N * M * d


def flops_in_one_line(B, H, N, M, d, backward):
    return B * H * N * M * d * (4 + 6 * backward)


def flops_by_name(B, H, N, M, d, backward):
    S = 2 * N * M * d
    passes = {0: S + S, 1: S + S + S + S + S}
    return B * H * passes[backward]


def flops_multiply_adds(B, H, N, M, d, backward):
    return B * H * N * M * d * (5 if backward else 2)


def flops_p_is_stored(B, H, N, M, d, backward):
    return B * H * N * M * d * (8 if backward else 4)


def flops_square(B, H, N, M, d, backward):
    return B * H * N * N * d * (10 if backward else 4)


def flops_both_passes(B, H, N, M, d, backward):
    return B * H * N * M * d * (14 if backward else 4)


def flops_of_scores(B, H, N, M, d, backward):
    return 2 * B * H * N * M * d


def flops_of_a_head(B, H, N, M, d, backward):
    return N * M * d * (10 if backward else 4)


def flops_twice_backward(B, H, N, M, d, backward):
    return B * H * N * M * d * 4 * (1 + backward)


def energy_added_up(N, d, B_r, pj_byte, pj_flop):
    T_r = math.ceil(N / B_r)
    in_bytes = 2 * N * d + T_r * (2 * N * d + 2 * N * d)
    out_bytes = 2 * N * d + 4 * N
    return (in_bytes + out_bytes) * pj_byte + (2 * N * N * d + 2 * N * N * d) * pj_flop


def energy_by_tiles(N, d, B_r, pj_byte, pj_flop):
    total = 0
    for first in range(0, N, B_r):
        rows = min(B_r, N - first)
        total += pj_byte * (2 * rows * d + 2 * 2 * N * d + 2 * rows * d + 4 * rows)
        total += pj_flop * 4 * rows * N * d
    return total


def energy_in_one_line(N, d, B_r, pj_byte, pj_flop):
    return 4 * N * (pj_byte * (d + d * ((N + B_r - 1) // B_r) + 1) + pj_flop * N * d)


def energy_lse_in_fp16(N, d, B_r, pj_byte, pj_flop):
    T_r = -(-N // B_r)
    return pj_byte * 2 * (2 * N * d + T_r * 2 * N * d + N) + pj_flop * 4 * N * N * d


def energy_of_elements(N, d, B_r, pj_byte, pj_flop):
    T_r = -(-N // B_r)
    return pj_byte * (2 * N * d + T_r * 2 * N * d + N) + pj_flop * 4 * N * N * d


def energy_keys_once(N, d, B_r, pj_byte, pj_flop):
    return pj_byte * (8 * N * d + 4 * N) + pj_flop * 4 * N * N * d


def energy_of_bytes_alone(N, d, B_r, pj_byte, pj_flop):
    T_r = -(-N // B_r)
    return pj_byte * (4 * N * d + T_r * 4 * N * d + 4 * N)


def energy_of_one_product(N, d, B_r, pj_byte, pj_flop):
    T_r = -(-N // B_r)
    return pj_byte * (4 * N * d + T_r * 4 * N * d + 4 * N) + pj_flop * 2 * N * N * d


def energy_of_standard(N, d, B_r, pj_byte, pj_flop):
    return pj_byte * 2 * (4 * N * N + 4 * N * d) + pj_flop * 4 * N * N * d


def energy_rounded_down(N, d, B_r, pj_byte, pj_flop):
    T_r = N // B_r
    return pj_byte * (4 * N * d + T_r * 4 * N * d + 4 * N) + pj_flop * 4 * N * N * d


def merged_by_logaddexp(O_a, lse_a, O_b, lse_b):
    lse = np.logaddexp(lse_a, lse_b)
    with np.errstate(invalid="ignore"):
        w_a = np.nan_to_num(np.exp(lse_a - lse))
        w_b = np.nan_to_num(np.exp(lse_b - lse))
    return w_a[:, None] * O_a + w_b[:, None] * O_b, lse


def merged_row_by_row(O_a, lse_a, O_b, lse_b):
    O, lse = np.zeros_like(O_a), np.full_like(lse_a, -np.inf)
    for row in range(len(lse)):
        m = max(lse_a[row], lse_b[row])
        if m == -np.inf:
            continue
        a, b = np.exp(lse_a[row] - m), np.exp(lse_b[row] - m)
        O[row] = (a * O_a[row] + b * O_b[row]) / (a + b)
        lse[row] = m + np.log(a + b)
    return O, lse


def merged_by_a_gate(O_a, lse_a, O_b, lse_b):
    with np.errstate(invalid="ignore", over="ignore"):
        share = 1 / (1 + np.exp(lse_b - lse_a))
    share = np.where(lse_a == lse_b, 0.5, share)[:, None]
    return share * O_a + (1 - share) * O_b, np.logaddexp(lse_a, lse_b)


def merged_by_adding(O_a, lse_a, O_b, lse_b):
    return O_a + O_b, np.logaddexp(lse_a, lse_b)


def merged_by_the_mean(O_a, lse_a, O_b, lse_b):
    return (O_a + O_b) / 2, np.logaddexp(lse_a, lse_b)


def merged_without_a_maximum(O_a, lse_a, O_b, lse_b):
    a, b = np.exp(lse_a)[:, None], np.exp(lse_b)[:, None]
    return (a * O_a + b * O_b) / (a + b), np.log(np.exp(lse_a) + np.exp(lse_b))


def merged_nan_where_empty(O_a, lse_a, O_b, lse_b):
    m = np.maximum(lse_a, lse_b)
    a, b = np.exp(lse_a - m)[:, None], np.exp(lse_b - m)[:, None]
    return (a * O_a + b * O_b) / (a + b), m + np.log((a + b)[:, 0])


def merged_lse_is_the_larger(O_a, lse_a, O_b, lse_b):
    O, _ = merged_by_logaddexp(O_a, lse_a, O_b, lse_b)
    return O, np.maximum(lse_a, lse_b)


def merged_weights_exchanged(O_a, lse_a, O_b, lse_b):
    O, lse = merged_by_logaddexp(O_b, lse_a, O_a, lse_b)
    return O, lse


def merged_not_divided(O_a, lse_a, O_b, lse_b):
    m = np.maximum(np.maximum(lse_a, lse_b), -1e30)
    a, b = np.exp(lse_a - m), np.exp(lse_b - m)
    with np.errstate(divide="ignore"):
        return a[:, None] * O_a + b[:, None] * O_b, m + np.log(a + b)


def merged_o_alone(O_a, lse_a, O_b, lse_b):
    return merged_by_logaddexp(O_a, lse_a, O_b, lse_b)[0]


ANSWERS = {
    "wait_parity": {
        "right": [parity_of_rounds, parity_by_walking, parity_odd_round],
        "wrong": [
            (parity_of_the_tile, r"place|ring|round|phase"),
            (parity_is_the_place, r"parity|0 or 1|phase|place"),
            (parity_is_the_round, r"parity|0 or 1|odd|even"),
            (parity_of_the_producer, r"producer|first|0"),
            (parity_one_late, r"round|place|phase"),
        ],
    },
    "ring_stages": {
        "right": [stages_left_over, stages_by_trying, stages_in_elements],
        "wrong": [
            (stages_without_o, r"\bO\b"),
            (stages_of_k_alone, r"\bV\b"),
            (stages_in_fp32, r"two bytes|fp16|fp32"),
            (stages_rounded_up, r"down|whole|fit"),
            (stages_below_zero, r"fewer|0|negative"),
            (stages_are_bytes, r"byte|\bO\b|\bV\b|tiles"),
        ],
    },
    "causal_tiles": {
        "right": [triangle, triangle_by_looking, triangle_from_the_square],
        "wrong": [
            (half_of_the_tiles, r"diagonal"),
            (half_of_the_matrix, r"diagonal|whole"),
            (triangle_without_diagonal, r"diagonal"),
            (triangle_of_whole_tiles, r"round|last|up"),
            (all_tiles, r"mask|sees|future|above|skip"),
        ],
    },
    "padding_waste": {
        "right": [waste_of_squares, waste_by_factors, waste_by_sorting],
        "wrong": [
            (waste_of_rows, r"score|row|square"),
            (waste_of_keys, r"row|quer|padd"),
            (waste_of_corners, r"row|key|square|strip"),
            (waste_of_the_sum, r"sequence|square|each"),
            (waste_if_first_is_longest, r"longest|first"),
            (waste_of_padded_rows, r"key|column|row"),
        ],
    },
    "predict_kept": {
        "right": [kept_added_up, kept_in_one_line, kept_by_tokens],
        "wrong": [
            (kept_without_o, r"\bO\b"),
            (kept_without_lse, r"LSE"),
            (kept_lse_in_fp16, r"LSE|four|fp32"),
            (kept_m_and_l, r"LSE|one number|m and l"),
            (kept_with_p, r"\bP\b"),
            (kept_of_one_layer, r"layer"),
            (kept_elements, r"bytes"),
        ],
    },
    "attention_flops": {
        "right": [flops_by_products, flops_in_one_line, flops_by_name],
        "wrong": [
            (flops_multiply_adds, r"multiply-add|two"),
            (flops_p_is_stored, r"again|\bS\b|five|recomput"),
            (flops_square, r"keys|queries|\bM\b"),
            (flops_both_passes, r"alone|forward|both"),
            (flops_of_scores, r"product|two|PV"),
            (flops_of_a_head, r"head|sequence|\bB\b"),
            (flops_twice_backward, r"five|again|product"),
        ],
    },
    "predict_energy": {
        "right": [energy_added_up, energy_by_tiles, energy_in_one_line],
        "wrong": [
            (energy_lse_in_fp16, r"LSE|four"),
            (energy_of_elements, r"bytes|elements"),
            (energy_keys_once, r"query tile|K and V|again|anew"),
            (energy_of_bytes_alone, r"FLOP|product"),
            (energy_of_one_product, r"two products|product"),
            (energy_of_standard, r"standard|S and P"),
            (energy_rounded_down, r"round|last"),
        ],
    },
    "merge_parts": {
        "right": [merged_by_logaddexp, merged_row_by_row, merged_by_a_gate],
        "wrong": [
            (merged_by_adding, r"weight|\bO\b|add"),
            (merged_by_the_mean, r"weight|mean|\bO\b"),
            (merged_without_a_maximum, r"overflow|maximum|larger|inf|NaN"),
            (merged_nan_where_empty, r"NaN|empty|no key|-inf"),
            (merged_lse_is_the_larger, r"lse"),
            (merged_weights_exchanged, r"\bO\b|weight|exchange"),
            (merged_not_divided, r"\bO\b|divide|sum"),
            (merged_o_alone, r"lse|two|return|pair"),
        ],
    },
}
