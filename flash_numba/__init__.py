"""FlashAttention as Numba CUDA kernels, from a naive one to one a teacher can hold against cuDNN.

Importing this package touches no GPU and needs neither numba nor a CUDA driver.
"""

__version__ = "0.1.0"
