def predict_standard(N, M, d):
    """S and P cross HBM twice each; Q, K, V and O once."""
    scores = N * d + M * d + N * M
    softmax = 2 * N * M
    output = N * M + M * d + N * d
    return scores + softmax + output
