"""Answers to the first puzzles on tiles."""

from . import Answers

double = Answers("double_q")
double.right(
    "in place in SRAM",
    '        rO = gpu.in_registers("O", sQ.shape)\n',
    "",
    "(rO,), (sQ,)",
    "(sQ,), (sQ,)",
    "rO)\n",
    "sQ)\n",
)
double.right(
    "whatever the head",
    """
def twice(tile):
    return tile + tile


def double_q(gpu):
    for place in gpu.query_tile_grid():
        head, rows = place[0], place[-1]
        tile = gpu.load("Q", gpu.tensor("Q")[head, rows])
        result = gpu.in_registers("two Q", tile.shape)
        gpu.compute("double", (result,), (tile,), twice)
        gpu.free(tile)
        gpu.store("O", gpu.tensor("O")[head, rows], result)
""",
)
double.wrong("not doubled", "not doubled", "2 * Q)", "1 * Q)")
double.wrong(
    "loaded twice",
    "reads Q too often",
    "        rO =",
    "        gpu.compute('look', (sQ,), (sQ,), abs)\n        gpu.free(sQ)\n"
    "        sQ = gpu.load('load Q_i', Q[head, rows])\n        rO =",
)
double.wrong("all rows in each block", "does not fit", "[head, rows]", "[head, gpu.all_rows]")
double.wrong("not freed", "not freed", "        gpu.free(sQ)\n", "")
double.wrong(
    "not stored", "never writes O", '        gpu.store("store O_i", O[head, rows], rO)\n', ""
)
double.wrong(
    "past the ledger",
    "by gpu.load",
    'sQ = gpu.load("load Q_i", Q[head, rows])',
    "sQ = gpu.in_registers('Q', (rows.stop - rows.start, gpu.d))\n"
    "        sQ.data = Q.data[head, rows]",
    "        gpu.free(sQ)\n",
    "",
)
double.wrong(
    "first tile only",
    "never written",
    "    for head, _, rows in gpu.query_tile_grid():\n",
    "    for head, m_block, rows in gpu.query_tile_grid():\n        if m_block:\n"
    "            continue\n",
)

scores = Answers("scores")
scores.right(
    "S in SRAM",
    "in_registers",
    "in_sram",
    "gpu.free(sK)",
    "gpu.free(sK, rS)",
)
scores.right(
    "scaled afterwards",
    ", scale=gpu.scale",
    "",
    "            gpu.store(",
    "            gpu.compute('scale', (rS,), (rS,), lambda S: S * S.dtype.type(gpu.scale))\n"
    "            gpu.store(",
)
scores.wrong("no scale", "without softmax_scale", ", scale=gpu.scale", "")
scores.wrong(
    "Q for every key tile",
    "reads Q too often",
    '        sQ = gpu.load("load Q_i", Q[head, rows])\n',
    "",
    '            sK = gpu.load("load K_j", K[cols])\n',
    '            sQ = gpu.load("load Q_i", Q[head, rows])\n'
    '            sK = gpu.load("load K_j", K[cols])\n',
    "gpu.free(sK)\n        gpu.free(sQ)",
    "gpu.free(sK, sQ)",
)
scores.wrong(
    "all of K at once",
    "fills up the registers",
    "        for _, cols in gpu.all_key_tiles():\n",
    "        for cols in (gpu.all_cols,):\n",
)
scores.wrong("not transposed", "the right operand is sK.T", "sK.T", "sK")
scores.wrong("K not freed", "not freed", "            gpu.free(sK)\n", "")
scores.wrong(
    "NumPy's product",
    "by gpu.product",
    'gpu.product("S = scale Q_i K_jᵀ", rS, sQ, sK.T, scale=gpu.scale)',
    "gpu.compute('S', (rS,), (sQ, sK), lambda Q, K: Q @ K.T * Q.dtype.type(gpu.scale))",
)
scores.wrong(
    "K kept from the first block",
    "another thread block",
    "    for head, _, rows in gpu.query_tile_grid():\n",
    "    kept = {}\n    for head, _, rows in gpu.query_tile_grid():\n",
    '            sK = gpu.load("load K_j", K[cols])\n',
    "            if cols.start not in kept:\n"
    '                sK = gpu.load("load K_j", K[cols])\n'
    "                kept[cols.start] = gpu.in_registers('K', sK.shape)\n"
    "                gpu.compute('keep', (kept[cols.start],), (sK,), lambda K: K)\n"
    "                gpu.free(sK)\n"
    "            sK = kept[cols.start]\n",
    "            gpu.free(sK)\n        gpu.free(sQ)",
    "        gpu.free(sQ)",
)

largest = Answers("row_max")
largest.right(
    "m in SRAM",
    "in_registers",
    "in_sram",
    "row_max)\n\n",
    "row_max)\n        gpu.free(row_max)\n\n",
)
largest.right(
    "each tile's maximum first",
    'gpu.compute("m = max(m, rowmax S)", (row_max,), (row_max, sS), larger)',
    "tile_max = gpu.in_registers('tile max', sS.shape[:1])\n"
    "            gpu.compute('rowmax', (tile_max,), (sS,), lambda S: S.max(axis=1))\n"
    "            gpu.compute('max', (row_max,), (row_max, tile_max), np.maximum)",
)
largest.wrong("starts at 0", "start of -inf", "-np.inf", "0.0")
largest.wrong("last tile", "last tile alone", "np.maximum(m, S.max(axis=1))", "S.max(axis=1)")
largest.wrong("columns", "fails", "S.max(axis=1)", "S.max(axis=0)")
largest.wrong(
    "m in HBM",
    "m",
    '        row_max = gpu.in_registers("m", (rows.stop - rows.start,), -np.inf)\n',
    "        gpu.fill('-inf', m[head, rows], -np.inf)\n",
    '            sS = gpu.load("load S_ij", S[head, rows, cols])\n',
    '            sS = gpu.load("load S_ij", S[head, rows, cols])\n'
    "            row_max = gpu.load('load m', m[head, rows])\n",
    "            gpu.free(sS)\n        gpu.store",
    "            gpu.free(sS, row_max)\n            gpu.store",
)
largest.wrong("tile_m rows always", "broadcast", "(rows.stop - rows.start,)", "(gpu.tile_m,)")
largest.wrong(
    "whole rows",
    "does not fit",
    "        for _, cols in gpu.all_key_tiles():\n",
    "        for cols in [gpu.all_cols]:\n",
)

lse = Answers("online_lse")
lse.right(
    "guarded start",
    "    l_new = l * np.exp(m - m_new)",
    "    factor = np.where(m == -np.inf, np.float32(0), np.exp(m - m_new))\n    l_new = l * factor",
)
lse.right(
    "in steps",
    'gpu.compute("m, l", (row_max, row_sum), (row_max, row_sum, sS), merged)',
    "alpha = gpu.in_registers('alpha', sS.shape[:1])\n"
    "            rP = gpu.in_registers('P', sS.shape)\n"
    "            gpu.compute('m', (row_max, alpha), (row_max, sS), rise, exp=alpha.size)\n"
    "            gpu.compute('P', (rP,), (sS, row_max), lambda S, m: np.exp(S - m[:, None]))\n"
    "            gpu.compute('l', (row_sum,), (row_sum, alpha, rP), "
    "lambda l, a, P: l * a + P.sum(axis=1))",
    "def merged(m, l, S):",
    "def rise(m, S):\n    m_new = np.maximum(m, S.max(axis=1))\n    return "
    "m_new, np.exp(m - m_new)\n\n\n"
    "def merged(m, l, S):",
)
lse.right(
    "logaddexp",
    """
import numpy as np


def online_lse(gpu):
    S, LSE = gpu.tensor("S"), gpu.tensor("LSE")
    for head, _, rows in gpu.query_tile_grid():
        lse = gpu.in_registers("lse", (rows.stop - rows.start,), -np.inf)
        for _, cols in gpu.all_key_tiles():
            sS = gpu.load("load S_ij", S[head, rows, cols])
            gpu.compute("logaddexp", (lse,), (lse, sS), more)
            gpu.free(sS)
        gpu.store("store lse_i", LSE[head, rows], lse)


def more(lse, S):
    m = S.max(axis=1)
    tile = m + np.log(np.exp(S - m[:, None]).sum(axis=1))
    return np.logaddexp(lse, tile)
""",
)
lse.wrong("no rescale", "not rescaled", "l * np.exp(m - m_new)", "l")
lse.wrong("no maximum", "", "m_new = np.maximum(m, S.max(axis=1))", "m_new = np.zeros_like(m)")
lse.wrong("log l", "LSE = m + log(l)", "lambda m, l: m + np.log(l)", "lambda m, l: np.log(l)")
lse.wrong("rescaled the wrong way", "LSE", "np.exp(m - m_new)", "np.exp(m_new - m)")
lse.wrong("maximum of the tile", "LSE", "np.maximum(m, S.max(axis=1))", "S.max(axis=1)")
lse.wrong("base 2", "is right", "m + np.log(l)", "m + np.log2(l)")
lse.wrong(
    "two passes",
    "reads S too often",
    '        for _, cols in gpu.all_key_tiles():\n            sS = gpu.load("load '
    'S_ij", S[head, rows, cols])\n'
    '            gpu.compute("m, l", (row_max, row_sum), (row_max, row_sum, sS), merged)\n',
    '        for _, cols in gpu.all_key_tiles():\n            sS = gpu.load("load '
    'S_ij", S[head, rows, cols])\n'
    "            gpu.compute('m', (row_max,), (row_max, sS), "
    "lambda m, S: np.maximum(m, S.max(axis=1)))\n            gpu.free(sS)\n"
    '        for _, cols in gpu.all_key_tiles():\n            sS = gpu.load("load '
    'S_ij", S[head, rows, cols])\n'
    '            gpu.compute("m, l", (row_max, row_sum), (row_max, row_sum, sS), merged)\n',
)

softmax = Answers("softmax_rows")
softmax.right(
    "from lse",
    "(rP,), (sS, row_max, row_sum), weights",
    "(rP,), (sS, row_max, row_sum), from_lse",
    "def merged",
    "def from_lse(S, m, l):\n    return np.exp(S - (m + np.log(l))[:, None])\n\n\ndef merged",
)
softmax.right("P in place in SRAM", 'rP = gpu.in_registers("P", sS.shape)', "rP = sS")
softmax.wrong("not divided", "do not sum to 1", " / l[:, None]", "")
softmax.wrong(
    "each tile by itself",
    "is right",
    "weights)\n",
    "alone)\n",
    "def merged",
    "def alone(S, m, l):\n    P = np.exp(S - S.max(axis=1, keepdims=True))\n"
    "    return P / P.sum(axis=1, keepdims=True)\n\n\ndef merged",
)
softmax.wrong("columns", "fails", "sum(axis=1)", "sum(axis=0)")
softmax.wrong("no rescale", "is right", "l * np.exp(m - m_new)", "l")
softmax.wrong("no maximum", "", "S - m[:, None]", "S")
softmax.wrong(
    "S on chip",
    "does not fit",
    "            gpu.free(sS)\n        for",
    "            kept.append(sS)\n        for",
    '            sS = gpu.load("load S_ij again", S[head, rows, cols])\n',
    "            sS = kept.pop(0)\n",
    '        row_sum = gpu.in_registers("l"',
    '        kept = []\n        row_sum = gpu.in_registers("l"',
)
softmax.wrong(
    "S three times",
    "reads S too often",
    '        for _, cols in gpu.all_key_tiles():\n            sS = gpu.load("load S_ij again"',
    "        for _, cols in gpu.all_key_tiles():\n            sS = gpu.load('', "
    "S[head, rows, cols])\n"
    "            gpu.compute('', (sS,), (sS,), np.copy)\n            gpu.free(sS)\n"
    '            sS = gpu.load("load S_ij again"',
)

values = Answers("weighted_values")
values.right(
    "added by hand",
    '            gpu.product("O = O + P V_j", acc_o, sP, sV, add=True)\n',
    "            rPV = gpu.in_registers('P V', acc_o.shape)\n"
    "            gpu.product('P V_j', rPV, sP, sV)\n"
    "            gpu.compute('add', (acc_o,), (acc_o, rPV), lambda O, PV: O + PV)\n",
)
values.right(
    "V first",
    """
def weighted_values(gpu):
    for head, m_block, rows in gpu.query_tile_grid():
        acc = None
        for n_block, cols in gpu.all_key_tiles():
            sV = gpu.load("V", gpu.tensor("V")[cols])
            sP = gpu.load("P", gpu.tensor("P")[head, rows, cols])
            if acc is None:
                acc = gpu.in_registers("O", (sP.shape[0], sV.shape[1]))
                gpu.product("P V", acc, sP, sV)
            else:
                gpu.product("O += P V", acc, sP, sV, add=True)
            gpu.free(sV, sP)
        gpu.store("O", gpu.tensor("O")[head, rows], acc)
""",
)
values.wrong("not added", "last tile of V alone", ", add=True", "")
values.wrong(
    "O accumulated in HBM",
    "reads O, which this puzzle does without",
    '        acc_o = gpu.in_registers("O", (rows.stop - rows.start, gpu.v), 0.0)\n',
    "        gpu.fill('0', O[head, rows], 0.0)\n",
    'gpu.product("O = O + P V_j", acc_o, sP, sV, add=True)',
    "acc_o = gpu.in_registers('O', (sP.shape[0], gpu.v))\n"
    "            gpu.product('P V', acc_o, sP, sV)\n"
    "            gpu.accumulate('O += P V', O[head, rows], acc_o)",
    '        gpu.store("store O_i", O[head, rows], acc_o)\n',
    "",
)
values.wrong(
    "stored inside the loop",
    "writes O too often",
    '        gpu.store("store O_i"',
    '            gpu.store("store O_i"',
)
values.wrong("all of V", "", "V[cols]", "V[gpu.all_cols]")
values.wrong("P transposed", "cannot hold", "acc_o, sP,", "acc_o, sP.T,")
values.wrong(
    "used after it is freed",
    "never used",
    "            gpu.free(sP, sV)\n",
    "",
    "            gpu.product",
    "            gpu.free(sP, sV)\n            gpu.product",
)
values.wrong("not zeroed", "nothing has been put", ", 0.0)", ")")

ANSWERS = (double, scores, largest, lse, softmax, values)
