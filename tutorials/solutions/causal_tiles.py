def causal_tiles(N, B):
    """Row i of tiles sees i + 1 of them, the one on the diagonal included."""
    T = -(-N // B)
    return T * (T + 1) // 2
