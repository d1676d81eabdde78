def double_q(gpu):
    """O = 2 Q, each tile loaded once."""
    Q, O = gpu.tensor("Q"), gpu.tensor("O")
    for head, _, rows in gpu.query_tile_grid():
        sQ = gpu.load("load Q_i", Q[head, rows])
        rO = gpu.in_registers("O", sQ.shape)
        gpu.compute("O = 2 Q", (rO,), (sQ,), lambda Q: 2 * Q)
        gpu.store("store O_i", O[head, rows], rO)
        gpu.free(sQ)
