def ring_stages(d, tile_m, tile_n, sram_bytes):
    """What Q and O leave, in pairs of a tile of K and one of V."""
    return max(0, (sram_bytes - 2 * 2 * tile_m * d) // (2 * 2 * tile_n * d))
