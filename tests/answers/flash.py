"""Answers to the puzzles that add up to FlashAttention's forward pass."""

from . import Answers

RESCALE_MISSING = ("alpha * l", "l", "alpha[:, None] * O", "O")
STORE_S = (
    "            gpu.compute(",
    "            gpu.store('S', gpu.tensor('S')[head, rows, cols], rS)\n            gpu.compute(",
)

lse = Answers("fused_lse")
lse.right(
    "Q scaled on arrival",
    ", scale=gpu.scale",
    "",
    '        row_max = gpu.in_registers("m"',
    "        gpu.compute('scale Q', (sQ,), (sQ,), lambda Q: Q * np.float32(gpu.scale))\n"
    '        row_max = gpu.in_registers("m"',
)
lse.right(
    "key_tiles",
    "gpu.all_key_tiles()",
    "gpu.key_tiles(head, m_block)",
    "head, _, rows",
    "head, m_block, rows",
)
lse.wrong("S in HBM", "N x M", *STORE_S)
lse.wrong("no scale", "without softmax_scale", ", scale=gpu.scale", "")
lse.wrong("no rescale", "not rescaled", "l * np.exp(m - m_new)", "l")
lse.wrong("no maximum", "", "m_new = np.maximum(m, S.max(axis=1))", "m_new = np.zeros_like(m)")
lse.wrong("K not freed", "does not fit", "            gpu.free(sK)\n", "")
lse.wrong(
    "Q for every key tile",
    "reads Q too often",
    '            sK = gpu.load("load K_j", K[cols])\n',
    '            gpu.free(sQ)\n            sQ = gpu.load("load Q_i", Q[head, rows])\n'
    '            sK = gpu.load("load K_j", K[cols])\n',
    '        row_max = gpu.in_registers("m"',
    "        gpu.compute('', (sQ,), (sQ,), np.copy)\n        row_max = gpu.in_registers(\"m\"",
)
lse.wrong(
    "a row of S in registers",
    "fills up the registers",
    '            rS = gpu.in_registers("S", (sQ.shape[0], sK.shape[0]))\n',
    '            rS = gpu.in_registers(f"S{cols.start}", (sQ.shape[0], sK.shape[0]))\n',
)

forward = Answers("flash_forward")
forward.right("the simulator's", "from simulator.programs.flash2 import forward as flash_forward\n")
forward.right(
    "V with K",
    '            sV = gpu.load("load V_j", V[cols])\n',
    "",
    '            sK = gpu.load("load K_j", K[cols])\n',
    '            sK = gpu.load("load K_j", K[cols])\n            sV = gpu.load("load '
    'V_j", V[cols])\n',
)
forward.right(
    "O normalised in every step",
    "return P, m_new, alpha * l + P.sum(axis=1), alpha[:, None] * O",
    "l_new = alpha * l + P.sum(axis=1)\n"
    "    return P / l_new[:, None], m_new, l_new, (alpha * l / l_new)[:, None] * O",
    "return O / l[:, None]",
    "return O",
)
forward.wrong("no rescale", "not rescaled", *RESCALE_MISSING)
forward.wrong("O not rescaled", "O is not rescaled", "alpha[:, None] * O", "O")
forward.wrong("not divided", "never divided", "O / l[:, None]", "O")
forward.wrong("S in HBM", "N x M", *STORE_S)
forward.wrong("no scale", "without softmax_scale", ", scale=gpu.scale", "")
forward.wrong("overflow", "", "np.maximum(m, S.max(axis=1))", "np.zeros_like(m)")
forward.wrong("lse in base 2", "is right", "m + np.log(l)", "m + np.log2(l)")
forward.wrong(
    "divided in the loop",
    "is right",
    'gpu.product("O = O + P V_j", acc_o, rS, sV, add=True)',
    'gpu.product("O = O + P V_j", acc_o, rS, sV, add=True)\n            gpu.compute(\'O '
    "/ l', (acc_o,), (acc_o, row_sum), lambda O, l: O / l[:, None])",
)
forward.wrong(
    "key tiles outside",
    "reads O",
    """
import numpy as np


def flash_forward(gpu):
    Q, K, V = gpu.tensor("Q"), gpu.tensor("K"), gpu.tensor("V")
    O, LSE, m, l = gpu.tensor("O"), gpu.tensor("LSE"), gpu.tensor("m"), gpu.tensor("l")
    for head in gpu.head_grid():
        gpu.fill("0", O[head, gpu.all_rows], 0.0)
        gpu.fill("0", l[head, gpu.all_rows], 0.0)
        gpu.fill("-inf", m[head, gpu.all_rows], -np.inf)
        for _, cols in gpu.outer_key_tiles():
            for _, rows in gpu.all_query_tiles(head):
                sQ, sK = gpu.load("Q", Q[head, rows]), gpu.load("K", K[cols])
                rS = gpu.in_registers("S", (sQ.shape[0], sK.shape[0]))
                gpu.product("S", rS, sQ, sK.T, scale=gpu.scale)
                gpu.free(sQ, sK)
                sO, sm = gpu.load("O", O[head, rows]), gpu.load("m", m[head, rows])
                sl = gpu.load("l", l[head, rows])
                state = (rS, sm, sl, sO)
                gpu.compute("P", state, state, step)
                rO = gpu.in_registers("O", sO.shape)
                gpu.compute("copy", (rO,), (sO,), np.copy)
                gpu.store("m", m[head, rows], sm)
                gpu.store("l", l[head, rows], sl)
                gpu.free(sO, sm, sl)
                sV = gpu.load("V", V[cols])
                gpu.product("O", rO, rS, sV, add=True)
                gpu.store("O", O[head, rows], rO)
                gpu.free(sV)
        for _, rows in gpu.all_query_tiles(head):
            sO, sm = gpu.load("O", O[head, rows]), gpu.load("m", m[head, rows])
            sl = gpu.load("l", l[head, rows])
            rL = gpu.in_registers("lse", sm.shape)
            gpu.compute("end", (sO, rL), (sO, sm, sl), end)
            gpu.store("O", O[head, rows], sO)
            gpu.store("lse", LSE[head, rows], rL)
            gpu.free(sO, sm, sl)


def end(O, m, l):
    return O / l[:, None], m + np.log(l)


def step(S, m, l, O):
    m_new = np.maximum(m, S.max(axis=1))
    a, P = np.exp(m - m_new), np.exp(S - m_new[:, None])
    return P, m_new, a * l + P.sum(axis=1), a[:, None] * O
""",
)

causal = Answers("flash_causal")
causal.right("the simulator's", "from simulator.programs.flash2 import forward as flash_causal\n")
causal.right(
    "nan_to_num",
    "    safe = np.where(np.isneginf(m_new), 0, m_new)\n    alpha = np.exp(m - safe)\n",
    "    safe = np.nan_to_num(m_new, neginf=0.0)\n    alpha = np.exp(m - safe)\n",
)
causal.right(
    "one store for all rows",
    "        if not gpu.sees_keys(head, m_block):\n"
    '            gpu.fill("store O_i", O[head, rows], 0.0)\n',
    "        if len(list(())) or not gpu.sees_keys(head, m_block):\n"
    '            gpu.fill("store O_i", O[head, rows], 0.0)\n',
)
causal.wrong(
    "no mask",
    "not masked",
    '            gpu.change_scores("mask S", rS, head, rows, cols)\n',
    "",
)
causal.wrong(
    "no tile skipped",
    "too often",
    "gpu.key_tiles(head, m_block)",
    "gpu.all_key_tiles()",
    'gpu.change_scores("mask S", rS, head, rows, cols)',
    "gpu._kind = 1\n            gpu.change_scores('mask S', rS, head, rows, cols)",
)
causal.wrong("inf - inf", "NaN", "np.where(np.isneginf(m_new), 0, m_new)", "m_new")
causal.wrong("divided by 0", "NaN", "O / np.where(l == 0, 1, l)[:, None]", "O / l[:, None]")
causal.wrong(
    "empty tiles not written",
    "never written",
    '            gpu.fill("store O_i", O[head, rows], 0.0)\n',
    "",
)
causal.wrong(
    "lse 0 for empty rows", "is right", "LSE[head, rows], -np.inf)", "LSE[head, rows], 0.0)"
)
causal.wrong("no rescale", "not rescaled", *RESCALE_MISSING)
causal.wrong(
    "Q loaded although nothing is seen",
    "",
    "        if not gpu.sees_keys(head, m_block):\n",
    '        sQ = gpu.load("load Q_i", Q[head, rows])\n        if not gpu.sees_keys(head, '
    "m_block):\n"
    "            gpu.compute('', (sQ,), (sQ,), np.copy)\n            gpu.free(sQ)\n",
    '            continue\n        sQ = gpu.load("load Q_i", Q[head, rows])\n',
    "            continue\n",
)

first = Answers("flash1_forward")
first.right(
    "normalised once, at the last key tile",
    "(alpha * l)[:, None] * O",
    "alpha[:, None] * O",
    'gpu.compute("O = (O + P V_j) / l", (sO,), (sO, rO, sl), normalised)',
    "last = cols.stop == gpu.seqlen_k\n"
    "                finish = normalised if last else (lambda O, PV, l: O + PV)\n"
    "                gpu.compute('O', (sO,), (sO, rO, sl), finish)",
)
first.right(
    "added into SRAM",
    '                rO = gpu.in_registers("O", sO.shape)\n'
    '                gpu.product("P V_j", rO, rP, sV)\n'
    '                gpu.compute("O = (O + P V_j) / l", (sO,), (sO, rO, sl), normalised)\n',
    '                gpu.product("O + P V_j", sO, rP, sV, add=True)\n'
    '                gpu.compute("/ l", (sO,), (sO, sl), lambda O, l: O / l[:, None])\n',
)
first.wrong(
    "no start",
    "nothing has written it",
    '        gpu.fill("m = -∞", m[head, gpu.all_rows], -np.inf)\n',
    "",
)
first.wrong(
    "never divided", "never divided", "(O + PV) / l[:, None]", "O + PV", "(alpha * l)[", "alpha["
)
first.wrong("normalised twice", "is right", "(alpha * l)[:, None] * O", "alpha[:, None] * O")
first.wrong(
    "query tiles outside",
    "too often",
    "        for _, cols in gpu.outer_key_tiles():\n"
    '            sK = gpu.load("load K_j", K[cols])\n'
    '            sV = gpu.load("load V_j", V[cols])\n'
    "            for _, rows in gpu.all_query_tiles(head):\n",
    "        for _, rows in gpu.all_query_tiles(head):\n"
    "            for _, cols in gpu.outer_key_tiles():\n"
    '                sK = gpu.load("load K_j", K[cols])\n'
    '                sV = gpu.load("load V_j", V[cols])\n',
    "                gpu.free(sQ, sO, sm, sl)\n            gpu.free(sK, sV)",
    "                gpu.free(sQ, sO, sm, sl, sK, sV)",
)
first.wrong("no scale", "without softmax_scale", ", scale=gpu.scale", "")
first.wrong(
    "m not stored", "is right", '                gpu.store("store m_i", m[head, rows], sm)\n', ""
)
first.wrong(
    "starts at 0",
    "starts at -inf, not at 0",
    "m[head, gpu.all_rows], -np.inf",
    "m[head, gpu.all_rows], 0.0",
)

shared = Answers("gqa_forward")
shared.right(
    "dictionaries, V later",
    '                sV = gpu.load("load V_j", V[cols])\n',
    "",
    '                sK = gpu.load("load K_j", K[cols])\n',
    '                sV = gpu.load("load V_j", V[cols])\n                sK '
    '= gpu.load("load K_j", K[cols])\n',
)
shared.right(
    "all products first",
    "                for head in heads:\n"
    '                    rS = gpu.in_registers("S", (r, sK.shape[0]))\n',
    "                for head in heads:\n"
    '                    rS = gpu.in_registers(f"S{head}", (r, sK.shape[0]))\n',
)
ONE_HEAD_AT_A_TIME = (
    "        for _, rows in gpu.all_query_tiles(0):\n",
    "        for one, rows in [(h, rows) for h in heads for _, rows in gpu.all_query_tiles(0)]:\n"
    "            heads = range(one, one + 1)\n",
)
shared.wrong(
    "a head at a time",
    "reads K too often",
    "from simulator.programs.flash2 import forward as gqa_forward\n",
)
shared.wrong("no rescale", "not rescaled", *RESCALE_MISSING)
shared.wrong(
    "one accumulator",
    "",
    'gpu.in_registers(f"O{head}", (r, gpu.v), 0.0) for head in heads',
    "acc0 for head in heads",
    "            row_max =",
    "            row_max =",
    "            acc = [",
    "            acc0 = gpu.in_registers('O', (r, gpu.v), 0.0)\n            acc = [",
)
shared.wrong(
    "first head only",
    "never written",
    "            for head in heads:\n                lse",
    "            for head in heads[:1]:\n                lse",
)
shared.wrong(
    "K for each head",
    "does not fit",
    '                    gpu.product("S = scale',
    '                    sK2 = gpu.load("K again", K[cols])\n'
    "                    gpu.compute('', (sK2,), (sK2,), np.copy)\n        "
    "            gpu.free(sK2)\n"
    '                    gpu.product("S = scale',
)
shared.wrong("no scale", "without softmax_scale", ", scale=gpu.scale", "")
shared.wrong("Q never freed", "does not fit", "            gpu.free(*sQ)\n", "")

ANSWERS = (lse, forward, causal, first, shared)
