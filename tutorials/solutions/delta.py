def delta(gpu):
    """delta = rowsum(dO ∘ O), a number a row."""
    O, dO, out = gpu.tensor("O"), gpu.tensor("dO"), gpu.tensor("delta")
    for head, _, rows in gpu.query_tile_grid():
        sO = gpu.load("load O_i", O[head, rows])
        sdO = gpu.load("load dO_i", dO[head, rows])
        rows_dot = gpu.in_registers("delta", sO.shape[:1])
        gpu.compute("rowsum(dO ∘ O)", (rows_dot,), (sO, sdO), lambda a, b: (a * b).sum(axis=1))
        gpu.store("store delta_i", out[head, rows], rows_dot)
        gpu.free(sO, sdO)
