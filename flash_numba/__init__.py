"""FlashAttention as Numba CUDA kernels, from a naive one to one a teacher can hold against cuDNN.

Importing this package touches no GPU and needs neither numba nor a CUDA driver.
"""

from .attention import explain, flash_attention, flash_attention_backward, standard_attention
from .varlen import flash_attention_varlen, flash_attention_varlen_backward

__all__ = ["explain", "flash_attention", "flash_attention_backward", "flash_attention_varlen"]
__all__ += ["flash_attention_varlen_backward", "standard_attention"]
__version__ = "0.1.0"
