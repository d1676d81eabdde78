"""FlashAttention as Numba CUDA kernels, from a naive one to one a teacher can hold against cuDNN.

Importing this package touches no GPU and needs neither numba nor a CUDA driver.
"""

from .attention import explain, flash_attention, flash_attention_backward, standard_attention

__all__ = ["explain", "flash_attention", "flash_attention_backward", "standard_attention"]
__version__ = "0.1.0"
