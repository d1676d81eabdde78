def padding_waste(L1, L2, L3):
    """Three squares of the longest, less the square of each."""
    return 3 * max(L1, L2, L3) ** 2 - (L1**2 + L2**2 + L3**2)
