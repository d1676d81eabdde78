"""The pass that sums up the gradient of a tensor in the scores: a bias, learned weights.

It comes after a backward pass and is no way to compute attention, hence not among `PROGRAMS`;
`simulator.run.simulate` takes `AUX_GRADIENT`. What is counted is what it reads for every visited
pair of tiles; the gradient itself is written once an element (see docs/counting.md).
"""

from ..machine import Machine
from . import flash2
from .flash2 import recompute_weights, score_gradient

LINES = {
    "delta": flash2.DELTA_LINES,
    "aux gradient": (
        "load Q_i, K_j, lse_i, delta_i",
        "S = scale Q_i K_jᵀ",
        "mask S",
        "P = exp(S - lse)",
        "load dO_i, V_j",
        "dP = dO_i V_jᵀ",
        "dS = scale P ∘ (dP - delta)",
    ),
}


def backward(gpu: Machine) -> None:
    """The gradients of the score changes' tensors, from the inputs of a backward pass.

    Parameters
    ----------
    gpu : Machine
        With Q, K, V, O, LSE, dO (and dLSE, if lse has a gradient) in HBM.
    """
    flash2.delta_pass(gpu)
    Q, K, V, dO = (gpu.tensor(name) for name in ("Q", "K", "V", "dO"))
    LSE, delta = gpu.tensor("LSE"), gpu.tensor("delta")
    gpu.kernel("aux gradient")
    line = "load Q_i, K_j, lse_i, delta_i"
    for head, m_block, rows in gpu.query_tile_grid():
        for _, cols in gpu.key_tiles(head, m_block):
            sLSE = gpu.load(line, LSE[head, rows])
            sDelta = gpu.load(line, delta[head, rows])
            sQ, sK = gpu.load(line, Q[head, rows]), gpu.load(line, K[cols])
            rP, chain = recompute_weights(gpu, head, rows, cols, sQ, sK, sLSE)
            gpu.free(sQ, sK)
            sdO = gpu.load("load dO_i, V_j", dO[head, rows])
            sV = gpu.load("load dO_i, V_j", V[cols])
            score_gradient(gpu, head, rows, cols, rP, sdO, sV, sDelta, chain)
            gpu.free(sdO, sV, sLSE, sDelta)
