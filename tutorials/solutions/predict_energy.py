def predict_energy(N, d, B_r, pj_byte, pj_flop):
    """Bytes of the closed form, FLOPs of two products."""
    T_r = -(-N // B_r)
    moved = 2 * (2 * N * d + T_r * 2 * N * d) + 4 * N
    return moved * pj_byte + 4 * N * N * d * pj_flop
