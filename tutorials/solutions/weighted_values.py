def weighted_values(gpu):
    """O = P V; O stays in registers."""
    P, V, O = gpu.tensor("P"), gpu.tensor("V"), gpu.tensor("O")
    for head, _, rows in gpu.query_tile_grid():
        acc_o = gpu.in_registers("O", (rows.stop - rows.start, gpu.v), 0.0)
        for _, cols in gpu.all_key_tiles():
            sP = gpu.load("load P_ij", P[head, rows, cols])
            sV = gpu.load("load V_j", V[cols])
            gpu.product("O = O + P V_j", acc_o, sP, sV, add=True)
            gpu.free(sP, sV)
        gpu.store("store O_i", O[head, rows], acc_o)
