def predict_flash2(N, M, d, B_r, B_c):
    """Q, O and LSE once; K and V once for each of the T_r query tiles."""
    T_r = -(-N // B_r)
    reads = N * d + T_r * 2 * M * d
    writes = N * d + N
    return reads + writes
