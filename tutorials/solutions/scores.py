def scores(gpu):
    """S = scale Q Kᵀ; a block keeps its Q tile."""
    Q, K, S = gpu.tensor("Q"), gpu.tensor("K"), gpu.tensor("S")
    for head, _, rows in gpu.query_tile_grid():
        sQ = gpu.load("load Q_i", Q[head, rows])
        for _, cols in gpu.all_key_tiles():
            sK = gpu.load("load K_j", K[cols])
            rS = gpu.in_registers("S", (sQ.shape[0], sK.shape[0]))
            gpu.product("S = scale Q_i K_jᵀ", rS, sQ, sK.T, scale=gpu.scale)
            gpu.store("store S_ij", S[head, rows, cols], rS)
            gpu.free(sK)
        gpu.free(sQ)
