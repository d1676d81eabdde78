def break_even(d):
    """2 d / B_r N² must be less than 4 N²."""
    return d // 2 + 1
