def tallest_tile(d, sram_bytes):
    """2 bytes for each of (B_r + 16 + 16) d elements."""
    rows = sram_bytes // (2 * d) - 2 * 16
    return rows // 16 * 16
