def wait_parity(n, stages):
    """The barrier of a place completes a phase each time the ring has gone round."""
    return n // stages % 2
