"""The algorithms of `flash_numba`, tile by tile in plain Python, every memory access counted."""
