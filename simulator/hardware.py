"""What GPUs can hold and do, from their data sheets, and the time that counts would take on them.

Every figure carries its unit in its name and its source in `Gpu.sources`. Peaks are dense (no
structured sparsity) and accumulate in fp32, at the boost clock: a kernel can come near, not past.
"""

from collections.abc import Mapping
from dataclasses import dataclass

KIB = 1024
MIB = 1024 * 1024

_GUIDE_LIMITS = (
    "CUDA C++ Programming Guide, Compute Capabilities, Technical Specifications per Compute "
    "Capability"
)
_GUIDE_THROUGHPUT = (
    "CUDA C++ Programming Guide, Arithmetic Instructions, Throughput of Native Arithmetic "
    "Instructions: 16 results of exp2 per clock and SM"
)


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU's limits and peaks.

    Parameters
    ----------
    name : str
        Name that `get` knows it by.
    compute_capability : tuple of int
        Major and minor.
    sm_count : int
        Streaming multiprocessors enabled on the product.
    shared_bytes_per_block : int
        The most shared memory one block may have, after opting in past the default 48 KiB.
    shared_bytes_per_sm : int
        What the blocks resident on one SM share; since compute capability 8.0 each block takes
        1 KiB of it for the system, hence the difference.
    register_bytes_per_sm : int
        Register file.
    l2_bytes : int
        L2 cache of the product.
    hbm_bytes_per_s : float
        Peak bandwidth of device memory, HBM or GDDR.
    boost_clock_hz : float
        The clock at which the tensor-core peak is stated, and `exp_per_s` here.
    tensor_flops_per_s : mapping of str to float
        Tensor-core peak by element type: ``fp16``, and ``bf16`` and ``fp8`` where there is one.
    fp32_flops_per_s : float
        Peak of fp32 multiply-adds outside the tensor cores, two operations each.
    exp_per_clock_per_sm : int
        Exponentials a clock of the special function units.
    sources : mapping of str to str
        Document and table of every figure above, by field name.
    """

    name: str
    compute_capability: tuple[int, int]
    sm_count: int
    shared_bytes_per_block: int
    shared_bytes_per_sm: int
    register_bytes_per_sm: int = 256 * KIB
    l2_bytes: int
    hbm_bytes_per_s: float
    boost_clock_hz: float
    tensor_flops_per_s: Mapping[str, float]
    fp32_flops_per_s: float
    exp_per_clock_per_sm: int = 16
    sources: Mapping[str, str]

    @property
    def exp_per_s(self) -> float:
        """Exponentials a second of the whole GPU at its boost clock."""
        return self.exp_per_clock_per_sm * self.sm_count * self.boost_clock_hz

    def matmul_flops_per_s(self, dtype: str) -> float:
        """Peak for products of tiles of one element type.

        Parameters
        ----------
        dtype : str
            ``fp32`` (multiply-adds outside the tensor cores) or a key of `tensor_flops_per_s`.

        Raises
        ------
        ValueError
            If the GPU has no unit for that type.
        """
        peaks = {"fp32": self.fp32_flops_per_s, **self.tensor_flops_per_s}
        if dtype not in peaks:
            raise ValueError(
                f"dtype must be one that {self.name} multiplies ({', '.join(peaks)}), got {dtype!r}"
            )
        return peaks[dtype]


@dataclass(frozen=True)
class Roofline:
    """Seconds that each unit would need by itself; `total_s` has them overlap perfectly.

    Parameters
    ----------
    memory_s, matmul_s, exp_s : float
        Seconds for the device-memory traffic, for the products of tiles and for the exponentials.
    """

    memory_s: float
    matmul_s: float
    exp_s: float

    @property
    def total_s(self) -> float:
        """Seconds that no schedule can beat: the longest of the three."""
        return max(self.memory_s, self.matmul_s, self.exp_s)

    @property
    def bound(self) -> str:
        """The unit that takes longest: ``memory``, ``matmul`` or ``exp``."""
        times = {"memory": self.memory_s, "matmul": self.matmul_s, "exp": self.exp_s}
        return max(times, key=lambda unit: times[unit])


def roofline(
    gpu: Gpu, *, hbm_bytes: float, matmul_flops: float, exp_count: float, dtype: str
) -> Roofline:
    """Least time for counted work on one GPU.

    Parameters
    ----------
    gpu : Gpu
        Whose peaks to divide by.
    hbm_bytes : float
        Bytes read from and written to device memory.
    matmul_flops : float
        Operations of products of tiles, a multiply-add being two.
    exp_count : float
        Exponentials.
    dtype : str
        Element type of the products, see `Gpu.matmul_flops_per_s`.

    Raises
    ------
    ValueError
        If a count is negative, or the GPU has no unit for `dtype`.

    Notes
    -----
    Williams, Waterman and Patterson, "Roofline" (2009), with one roof more for the exponentials:
    FlashAttention-3 (2024) counts them at half the products' time on H100 for head_dim 128.
    """
    for name, count in (
        ("hbm_bytes", hbm_bytes),
        ("matmul_flops", matmul_flops),
        ("exp_count", exp_count),
    ):
        if not count >= 0:
            raise ValueError(f"{name} must be >= 0, got {count}")
    return Roofline(
        memory_s=hbm_bytes / gpu.hbm_bytes_per_s,
        matmul_s=matmul_flops / gpu.matmul_flops_per_s(dtype),
        exp_s=exp_count / gpu.exp_per_s,
    )


def _sources(sheet: str, **own: str) -> dict[str, str]:
    limits = ("compute_capability", "shared_bytes_per_block", "shared_bytes_per_sm")
    products = (
        "sm_count",
        "l2_bytes",
        "hbm_bytes_per_s",
        "boost_clock_hz",
        "tensor_flops_per_s",
        "fp32_flops_per_s",
    )
    return {
        **dict.fromkeys((*limits, "register_bytes_per_sm"), _GUIDE_LIMITS),
        "exp_per_clock_per_sm": _GUIDE_THROUGHPUT,
        **dict.fromkeys(products, sheet),
        **own,
    }


V100 = Gpu(
    name="V100",
    compute_capability=(7, 0),
    sm_count=80,
    shared_bytes_per_block=96 * KIB,
    shared_bytes_per_sm=96 * KIB,
    l2_bytes=6 * MIB,
    hbm_bytes_per_s=900e9,
    boost_clock_hz=1.530e9,
    tensor_flops_per_s={"fp16": 125e12},
    fp32_flops_per_s=15.7e12,
    sources=_sources(
        "NVIDIA Tesla V100 GPU Architecture (WP-08608), comparison of Tesla accelerators: V100 SXM2"
    ),
)

T4 = Gpu(
    name="T4",
    compute_capability=(7, 5),
    sm_count=40,
    shared_bytes_per_block=64 * KIB,
    shared_bytes_per_sm=64 * KIB,
    l2_bytes=4 * MIB,
    hbm_bytes_per_s=320e9,
    boost_clock_hz=1.590e9,
    tensor_flops_per_s={"fp16": 65e12},
    fp32_flops_per_s=8.1e12,
    sources=_sources(
        "NVIDIA Turing GPU Architecture (WP-09183), TU104 comparison: Tesla T4",
        hbm_bytes_per_s="NVIDIA Turing GPU Architecture (WP-09183), TU104 comparison: 320 GB/s, as "
        "256 bit at 10 Gbit/s give; NVIDIA's T4 product page says 300 GB/s",
    ),
)

A100 = Gpu(
    name="A100",
    compute_capability=(8, 0),
    sm_count=108,
    shared_bytes_per_block=163 * KIB,
    shared_bytes_per_sm=164 * KIB,
    l2_bytes=40 * MIB,
    hbm_bytes_per_s=2039e9,
    boost_clock_hz=1.410e9,
    tensor_flops_per_s={"fp16": 312e12, "bf16": 312e12},
    fp32_flops_per_s=19.5e12,
    sources=_sources(
        "NVIDIA A100 Tensor Core GPU Architecture, comparison of data center GPUs",
        hbm_bytes_per_s="NVIDIA A100 data sheet, A100 80GB SXM (the 40GB card has 1555 GB/s)",
    ),
)

RTX_3090 = Gpu(
    name="RTX 3090",
    compute_capability=(8, 6),
    sm_count=82,
    shared_bytes_per_block=99 * KIB,
    shared_bytes_per_sm=100 * KIB,
    l2_bytes=6 * MIB,
    hbm_bytes_per_s=936e9,
    boost_clock_hz=1.695e9,
    tensor_flops_per_s={"fp16": 71e12, "bf16": 71e12},
    fp32_flops_per_s=35.6e12,
    sources=_sources(
        "NVIDIA Ampere GA102 GPU Architecture, appendix A, GeForce RTX 3090",
        tensor_flops_per_s="NVIDIA Ampere GA102 GPU Architecture, appendix A, GeForce RTX 3090: "
        "with fp32 accumulation (142 TFLOP/s with fp16)",
    ),
)

RTX_4090 = Gpu(
    name="RTX 4090",
    compute_capability=(8, 9),
    sm_count=128,
    shared_bytes_per_block=99 * KIB,
    shared_bytes_per_sm=100 * KIB,
    l2_bytes=72 * MIB,
    hbm_bytes_per_s=1008e9,
    boost_clock_hz=2.520e9,
    tensor_flops_per_s={"fp16": 165.2e12, "bf16": 165.2e12, "fp8": 330.3e12},
    fp32_flops_per_s=82.6e12,
    sources=_sources(
        "NVIDIA Ada GPU Architecture, appendix A, GeForce RTX 4090",
        tensor_flops_per_s="NVIDIA Ada GPU Architecture, appendix A, GeForce RTX 4090: with fp32 "
        "accumulation (fp16 330.3, fp8 660.6 TFLOP/s with fp16)",
    ),
)

_HOPPER = "NVIDIA H100 Tensor Core GPU Architecture, comparison with A100: H100 SXM5"

H100 = Gpu(
    name="H100",
    compute_capability=(9, 0),
    sm_count=132,
    shared_bytes_per_block=227 * KIB,
    shared_bytes_per_sm=228 * KIB,
    l2_bytes=50 * MIB,
    hbm_bytes_per_s=3352e9,
    boost_clock_hz=1.830e9,
    tensor_flops_per_s={"fp16": 989.4e12, "bf16": 989.4e12, "fp8": 1978.9e12},
    fp32_flops_per_s=66.9e12,
    sources=_sources(
        _HOPPER,
        hbm_bytes_per_s=f"{_HOPPER}: 3352 GB/s (the data sheet rounds to 3.35 TB/s)",
        boost_clock_hz=f"{_HOPPER}: 1830 MHz under tensor-core load",
        fp32_flops_per_s=f"{_HOPPER}: at 1980 MHz, the boost clock without tensor cores",
    ),
)

H200 = Gpu(
    name="H200",
    compute_capability=(9, 0),
    sm_count=132,
    shared_bytes_per_block=227 * KIB,
    shared_bytes_per_sm=228 * KIB,
    l2_bytes=60 * MIB,
    hbm_bytes_per_s=4.8e12,
    boost_clock_hz=1.830e9,
    tensor_flops_per_s={"fp16": 989.4e12, "bf16": 989.4e12, "fp8": 1978.9e12},
    fp32_flops_per_s=66.9e12,
    sources=_sources(
        f"{_HOPPER}; the H200 data sheet repeats its compute figures",
        hbm_bytes_per_s="NVIDIA H200 data sheet, SXM: 4.8 TB/s (6016 bit at 6.4 Gbit/s: 4.81)",
        l2_bytes="cudaDeviceProp.l2CacheSize of an H200, 62914560; the data sheet gives none, and "
        "summaries that copy H100's 50 MB are wrong",
        boost_clock_hz=f"{_HOPPER}: 1830 MHz under tensor-core load, same die",
    ),
)

_HGX_B200 = "NVIDIA HGX B200 data sheet, individual Blackwell GPU specifications"

B200 = Gpu(
    name="B200",
    compute_capability=(10, 0),
    sm_count=148,
    shared_bytes_per_block=227 * KIB,
    shared_bytes_per_sm=228 * KIB,
    l2_bytes=126 * MIB,
    hbm_bytes_per_s=7.7e12,
    boost_clock_hz=1.856e9,
    tensor_flops_per_s={"fp16": 2250e12, "bf16": 2250e12, "fp8": 4500e12},
    fp32_flops_per_s=75e12,
    sources=_sources(
        _HGX_B200,
        sm_count="cudaDeviceProp.multiProcessorCount of a B200 (pytorch/ao pull request 4002)",
        shared_bytes_per_block="NVIDIA Blackwell Tuning Guide, Unified Shared Memory/L1",
        shared_bytes_per_sm="NVIDIA Blackwell Tuning Guide, Unified Shared Memory/L1",
        l2_bytes="NVIDIA Blackwell Tuning Guide, Increased L2 Capacity: 126 MB (a device reports "
        "126.5 MiB, pytorch/ao pull request 4002)",
        hbm_bytes_per_s=f"{_HGX_B200}: 7.7 TB/s, as 7680 bit at 8 Gbit/s give; launch material "
        "said 8 TB/s for 8192 bit",
        boost_clock_hz="no data sheet has one: the clock at which 148 SMs of 8192 bf16 operations "
        "reach the stated 2.25 PFLOP/s",
        tensor_flops_per_s=f"{_HGX_B200}: half the printed figures, which count sparsity",
        fp32_flops_per_s=f"{_HGX_B200}: 75 TFLOP/s (launch material said 80)",
        exp_per_clock_per_sm="FlashAttention-4 (2026): 16 per clock and SM, unchanged from H100",
    ),
)

GPUS = (V100, T4, A100, RTX_3090, RTX_4090, H100, H200, B200)
"""Every profile, oldest first."""


def get(name: str) -> Gpu:
    """The profile of a GPU by its name, whatever the case, spaces, hyphens and underscores.

    Raises
    ------
    ValueError
        If there is none; it lists those there are.
    """

    def plain(text: str) -> str:
        return text.casefold().translate(str.maketrans("", "", " -_"))

    for gpu in GPUS:
        if plain(gpu.name) == plain(name):
            return gpu
    raise ValueError(f"gpu must be one of {', '.join(gpu.name for gpu in GPUS)}; got {name!r}")
