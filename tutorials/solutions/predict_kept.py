def predict_kept(layers, B, H, N, d):
    """Q, K, V and O of two bytes an element, LSE of four."""
    return layers * B * H * (2 * 4 * N * d + 4 * N)
