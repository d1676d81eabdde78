def attention_flops(B, H, N, M, d, backward):
    """Two products forward; five backward, S among them."""
    return B * H * 2 * N * M * d * (5 if backward else 2)
