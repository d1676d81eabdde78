"""Answers to the puzzles on the backward pass."""

from . import Answers

delta = Answers("delta")
delta.right(
    "einsum",
    "lambda a, b: (a * b).sum(axis=1)",
    "lambda a, b: __import__('numpy').einsum('ij,ij->i', a, b)",
)
delta.right(
    "product, then sum",
    '        rows_dot = gpu.in_registers("delta", sO.shape[:1])\n',
    '        rows_dot = gpu.in_registers("delta", sO.shape[:1])\n'
    "        gpu.compute('O = dO O', (sO,), (sO, sdO), lambda a, b: a * b)\n",
    "(sO, sdO), lambda a, b: (a * b).sum(axis=1)",
    "(sO,), lambda a: a.sum(axis=1)",
)
delta.wrong("without O", "without O", "(a * b)", "b")
delta.wrong("columns", "fails", "axis=1", "axis=0")
delta.wrong("mean", "is right", ".sum(axis=1)", ".mean(axis=1)")
delta.wrong("O twice", "not resident", "(sO, sdO)", "(sO, sO)")
delta.wrong(
    "dO not loaded",
    "by gpu.load",
    '        sdO = gpu.load("load dO_i", dO[head, rows])\n',
    "",
    "(sO, sdO)",
    "(sO,)",
    "lambda a, b: (a * b)",
    "lambda a: (a * dO.data[head, rows])",
)
delta.wrong(
    "once more for luck",
    "writes delta too often",
    "        gpu.free(sO, sdO)",
    '        gpu.store("again", out[head, rows], rows_dot)\n        gpu.free(sO, sdO)',
)

dv = Answers("recompute_dv")
dv.right(
    "P in a tile of its own",
    'gpu.compute("P = exp(S - lse)", (rP,), (rP, sLSE), weights)',
    "rS = rP\n            rP = gpu.in_registers('P of this tile', rS.shape)\n"
    "            gpu.compute('P', (rP,), (rS, sLSE), weights)",
)
dv.right(
    "transposed throughout",
    'rP = gpu.in_registers("P", (sQ.shape[0], sK.shape[0]))',
    'rPt = gpu.in_registers("Pt", (sK.shape[0], sQ.shape[0]))',
    "rP, sQ, sK.T,",
    "rPt, sK, sQ.T,",
    "(rP,), (rP, sLSE), weights",
    "(rPt,), (rPt, sLSE), lambda S, lse: np.exp(S - lse[None, :])",
    "rP.T, sdO",
    "rPt, sdO",
)
dv.wrong("no scale", "without softmax_scale", ", scale=gpu.scale", "")
dv.wrong(
    "own softmax",
    "never used",
    "np.exp(S - lse[:, None])",
    "np.exp(S - S.max(axis=1, keepdims=True))",
    "(rP,), (rP, sLSE), weights",
    "(rP,), (rP,), lambda S: weights(S, S.max(axis=1))",
)
dv.wrong("not transposed", "cannot hold", "rP.T, sdO", "rP, sdO")
dv.wrong(
    "P in HBM",
    "N x M",
    '            gpu.product("dV',
    "            gpu.store('P', gpu.tensor('P')[0, rows, cols], rP)\n            gpu.product(\"dV",
)
dv.wrong("lse not subtracted", "", "S - lse[:, None]", "S")
dv.wrong("not added up", "is right", ", add=True", "")
dv.wrong(
    "dV in HBM",
    "which this puzzle does without",
    '        acc_dv = gpu.in_registers("dV", (sK.shape[0], gpu.v), 0.0)\n',
    "        gpu.fill('0', dV[cols], 0.0)\n",
    'gpu.product("dV = dV + Pᵀ dO_i", acc_dv, rP.T, sdO, add=True)',
    "acc_dv = gpu.in_registers('dV', (sK.shape[0], gpu.v))\n"
    "            gpu.product('', acc_dv, rP.T, sdO)\n"
    "            gpu.accumulate('', dV[cols], acc_dv)",
    '        gpu.store("store dV_j", dV[cols], acc_dv)\n',
    "",
)

back = Answers("backward")
back.right("one kernel, dQ by accumulate", "from simulator.programs.flash2 import backward\n")
back.right(
    "two kernels", "from simulator.programs.flash2 import backward_two_kernels as backward\n"
)
back.wrong(
    "no delta",
    "forgets delta",
    "(dP - delta[:, None])",
    "dP",
    "(rdS,), (rP, rdS, sDelta), gradient",
    "(rdS,), (rP, rdS, sDelta), gradient",
)
back.wrong("no scale in dS", "is right", "np.float32(gpu.scale) * P", "P")
back.wrong("scale twice", "is right", "np.float32(gpu.scale) * P", "np.float32(gpu.scale) ** 2 * P")
back.wrong("no kernel between", "of the same kernel", '    gpu.kernel("dK dV")\n', "")
back.wrong(
    "P in HBM",
    "N x M",
    "    return rP, rdS",
    "    gpu.store('P', gpu.tensor('P')[0, slice(0, 1), slice(0, 1)], rP)\n    return rP, rdS",
)
back.wrong("dQ transposed", "cannot hold", "acc_dq, rdS, sK", "acc_dq, rdS.T, sK")
back.wrong("dK from Pᵀ", "is right", "acc_dk, rdS.T", "acc_dk, rP.T")
back.wrong(
    "dQ not stored",
    "never writes dQ",
    '        gpu.store("store dQ_i", dQ[head, rows], acc_dq)\n',
    "",
)
back.wrong(
    "dQ by store from many blocks",
    "which block",
    '            gpu.product("dK = dK + dSᵀ Q_i"',
    "            rdQ = gpu.in_registers('dQ', query_side[0].shape)\n"
    "            gpu.product('dQ', rdQ, rdS, sK)\n"
    "            gpu.store('dQ', dQ[0, rows], rdQ)\n"
    '            gpu.product("dK = dK + dSᵀ Q_i"',
)

ANSWERS = (delta, dv, back)
