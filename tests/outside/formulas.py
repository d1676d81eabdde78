"""Formulas."""

import math


def standard_added_up(N, M, d):
    scores = N * d + M * d + N * M
    softmax = N * M + N * M
    output = N * M + M * d + N * d
    return scores + softmax + output


def standard_softmax_for_free(N, M, d):
    return 2 * d * (N + M) + 2 * N * M


def standard_reads_only(N, M, d):
    return (N + M) * d + N * M + N * M + M * d


def standard_square(N, M, d):
    return 4 * N * d + 4 * N * N


def standard_bytes(N, M, d):
    return 2 * standard_added_up(N, M, d)


def standard_prints(N, M, d):
    print(standard_added_up(N, M, d))


def flash2_by_tiles(N, M, d, B_r, B_c):
    moved = 0
    for first in range(0, N, B_r):
        r = min(B_r, N - first)
        moved += r * d
        for key in range(0, M, B_c):
            moved += 2 * min(B_c, M - key) * d
        moved += r * d + r
    return moved


def flash2_in_one_line(N, M, d, B_r, B_c):
    return 2 * N * d + N + 2 * M * d * math.ceil(N / B_r)


def flash2_floor(N, M, d, B_r, B_c):
    return 2 * N * d + N + 2 * M * d * (N // B_r)


def flash2_without_lse(N, M, d, B_r, B_c):
    return 2 * N * d + 2 * M * d * -(-N // B_r)


def flash2_padded(N, M, d, B_r, B_c):
    T_r, T_c = -(-N // B_r), -(-M // B_c)
    return 2 * T_r * B_r * d + N + T_r * T_c * 2 * B_c * d


def flash2_keys_once(N, M, d, B_r, B_c):
    return 2 * N * d + N + 2 * M * d


def flash2_true_division(N, M, d, B_r, B_c):
    return 2 * N * d + N + 2 * M * d * N / B_r


def break_even_by_search(d):
    rows = 1
    while 4 * rows <= 2 * d:
        rows += 1
    return rows


def break_even_ties(d):
    return (d + 1) // 2


def break_even_forgets_v(d):
    return d // 4 + 1


def break_even_whole_d(d):
    return d + 1


def break_even_in_bytes(d):
    return 2 * d + 1


def tallest_by_search(d, sram_bytes):
    best = 0
    rows = 16
    while 2 * d * (rows + 16 + 16) <= sram_bytes:
        best, rows = rows, rows + 16
    return best


def tallest_without_v(d, sram_bytes):
    return (sram_bytes // (2 * d) - 16) // 16 * 16


def tallest_in_elements(d, sram_bytes):
    return (sram_bytes // d - 32) // 16 * 16


def tallest_not_a_multiple(d, sram_bytes):
    return sram_bytes // (2 * d) - 32


def tallest_rounded_up(d, sram_bytes):
    return math.ceil((sram_bytes / (2 * d) - 32) / 16) * 16


def tallest_strictly_less(d, sram_bytes):
    return ((sram_bytes - 1) // (2 * d) - 32) // 16 * 16


def tallest_float(d, sram_bytes):
    return (sram_bytes / (2 * d) - 32) // 16 * 16 + 0.5


ANSWERS = {
    "predict_standard": {
        "right": [standard_added_up],
        "wrong": [
            (standard_softmax_for_free, r"softmax|N.?M|\bP\b|N M|NM"),
            (standard_reads_only, r"writ|expected|is \d"),
            (standard_square, r"N ?=.*M ?=|M"),
            (standard_bytes, r"element|twice|bytes"),
            (standard_prints, r"None|return"),
        ],
    },
    "predict_flash2": {
        "right": [flash2_by_tiles, flash2_in_one_line],
        "wrong": [
            (flash2_floor, r"last|ceil|⌈|round"),
            (flash2_without_lse, r"LSE|lse"),
            (flash2_padded, r"last|valid|fewer|pad"),
            (flash2_keys_once, r"K|tile"),
            (flash2_true_division, r"last|whole|ceil|⌈|round"),
        ],
    },
    "break_even": {
        "right": [break_even_by_search],
        "wrong": [
            (break_even_ties, r"less|equal|as much|same|exactly"),
            (break_even_forgets_v, r"V|K|more"),
            (break_even_whole_d, r"small"),
            (break_even_in_bytes, r"count"),
        ],
    },
    "tallest_tile": {
        "right": [tallest_by_search],
        "wrong": [
            (tallest_without_v, r"fit|V|bytes"),
            (tallest_in_elements, r"fit|bytes"),
            (tallest_not_a_multiple, r"multiple|16"),
            (tallest_rounded_up, r"fit|bytes"),
            (tallest_strictly_less, r"fit|larg|tall"),
            (tallest_float, r"multiple|whole|16"),
        ],
    },
}
