import dataclasses

import pytest

from simulator import accelerators, hardware
from simulator.hardware import GPUS, Gpu, roofline

# Bus width (bit) and data rate (Gbit/s a pin) of the memory; operations a clock and SM of dense
# fp16 products with fp32 accumulation, and of fp32; the clock (MHz) of the latter. From the block
# diagrams and memory parts, not from the peaks that they are held against.
ARITHMETIC = {
    "V100": (4096, 2 * 0.877, 8 * 64 * 2, 64 * 2, 1530),
    "T4": (256, 10.0, 8 * 64 * 2, 64 * 2, 1590),
    "A100": (5120, 2 * 1.593, 4 * 256 * 2, 64 * 2, 1410),
    "RTX 3090": (384, 19.5, 4 * 64 * 2, 128 * 2, 1695),
    "RTX 4090": (384, 21.0, 4 * 64 * 2, 128 * 2, 2520),
    "H100": (5120, 2 * 2.619, 4 * 512 * 2, 128 * 2, 1980),
    "H200": (6016, 2 * 3.201, 4 * 512 * 2, 128 * 2, 1980),
    "B200": (7680, 2 * 3.996, 4 * 1024 * 2, 128 * 2, 1980),
}
SHARED = {  # KiB a block and an SM by compute capability
    (7, 0): (96, 96),
    (7, 5): (64, 64),
    (8, 0): (163, 164),
    (8, 6): (99, 100),
    (8, 9): (99, 100),
    (9, 0): (227, 228),
    (10, 0): (227, 228),
}
every_gpu = pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name.replace(" ", ""))


def test_profiles_are_those_promised():
    assert [gpu.name for gpu in GPUS] == list(ARITHMETIC)


@every_gpu
def test_bandwidth_is_bus_width_times_data_rate(gpu: Gpu):
    bits, gbit_per_s, *_ = ARITHMETIC[gpu.name]
    assert gpu.hbm_bytes_per_s == pytest.approx(bits / 8 * gbit_per_s * 1e9, rel=0.004)


@every_gpu
def test_peaks_are_units_times_clock(gpu: Gpu):
    _, _, fp16_ops, fp32_ops, fp32_mhz = ARITHMETIC[gpu.name]
    fp16 = gpu.sm_count * fp16_ops * gpu.boost_clock_hz
    assert gpu.tensor_flops_per_s["fp16"] == pytest.approx(fp16, rel=0.004)
    fp32 = gpu.sm_count * fp32_ops * fp32_mhz * 1e6
    assert gpu.fp32_flops_per_s == pytest.approx(fp32, rel=0.006)


@every_gpu
def test_types_follow_the_compute_capability(gpu: Gpu):
    types = {"fp16"}
    types |= {"bf16"} if gpu.compute_capability >= (8, 0) else set()
    types |= {"fp8"} if gpu.compute_capability >= (8, 9) else set()
    assert set(gpu.tensor_flops_per_s) == types
    if "bf16" in types:
        assert gpu.tensor_flops_per_s["bf16"] == gpu.tensor_flops_per_s["fp16"]
    if "fp8" in types:
        twice = 2 * gpu.tensor_flops_per_s["fp16"]
        assert gpu.tensor_flops_per_s["fp8"] == pytest.approx(twice, rel=0.001)


@every_gpu
def test_memories_are_bytes(gpu: Gpu):
    block, sm = SHARED[gpu.compute_capability]
    assert (gpu.shared_bytes_per_block, gpu.shared_bytes_per_sm) == (block * 1024, sm * 1024)
    assert gpu.register_bytes_per_sm == 65536 * 4
    assert gpu.l2_bytes % 2**20 == 0


def test_shared_memory_as_a_hopper_reports_it():
    # cudaDevAttrMaxSharedMemoryPerBlockOptin and ...PerMultiprocessor of an H200.
    h200 = hardware.get("h200")
    assert (h200.shared_bytes_per_block, h200.shared_bytes_per_sm) == (232448, 233472)
    assert h200.l2_bytes == 62914560


def test_h100_exponentials_as_flashattention_3_states_them():
    # 3.9 TFLOPS of special functions against 989 TFLOPS of fp16 products, so that at head_dim 128
    # (512 operations of products an exponential) they take half as long.
    assert hardware.H100.exp_per_s == pytest.approx(3.9e12, rel=0.01)
    line = roofline(hardware.H100, hbm_bytes=0, matmul_flops=512e9, exp_count=1e9, dtype="fp16")
    assert line.exp_s / line.matmul_s == pytest.approx(0.5, abs=0.01)


@every_gpu
def test_every_figure_has_a_source(gpu: Gpu):
    figures = {field.name for field in dataclasses.fields(Gpu)} - {"name", "sources"}
    assert set(gpu.sources) == figures
    assert all(len(source) > 20 for source in gpu.sources.values())


@pytest.mark.parametrize(
    ("counts", "bound", "seconds"),
    [
        ({"hbm_bytes": 3352e9, "matmul_flops": 1e12, "exp_count": 1e9}, "memory", 1.0),
        ({"hbm_bytes": 1e9, "matmul_flops": 2 * 989.4e12, "exp_count": 1e9}, "matmul", 2.0),
        ({"hbm_bytes": 0, "matmul_flops": 0, "exp_count": 3 * 16 * 132 * 1.83e9}, "exp", 3.0),
    ],
)
def test_roofline_is_the_longest_unit(counts, bound, seconds):
    line = roofline(hardware.H100, **counts, dtype="fp16")
    assert line.bound == bound
    assert line.total_s == pytest.approx(seconds)
    assert line.total_s == getattr(line, f"{bound}_s")


def test_roofline_divides_by_the_peak_of_the_type():
    def matmul_s(dtype):
        counts = {"hbm_bytes": 0, "matmul_flops": 1e15, "exp_count": 0}
        return roofline(hardware.H100, **counts, dtype=dtype).matmul_s

    assert matmul_s("fp16") == matmul_s("bf16") == pytest.approx(2 * matmul_s("fp8"), rel=1e-3)
    assert matmul_s("fp32") == pytest.approx(1e15 / 66.9e12)


def test_roofline_refuses_what_the_gpu_cannot_do():
    counts = {"hbm_bytes": 1, "matmul_flops": 1, "exp_count": 1}
    with pytest.raises(ValueError, match=r"T4 multiplies \(fp32, fp16\), got 'bf16'"):
        roofline(hardware.T4, **counts, dtype="bf16")
    with pytest.raises(ValueError, match="hbm_bytes must be >= 0, got -1"):
        roofline(hardware.T4, **{**counts, "hbm_bytes": -1}, dtype="fp16")


@pytest.mark.parametrize("name", ["RTX 4090", "rtx4090", "RTX-4090", "rtx_4090"])
def test_names_are_read_leniently(name):
    assert hardware.get(name) is hardware.RTX_4090


def test_an_unknown_name_says_what_there_is():
    with pytest.raises(ValueError, match=r"one of V100, T4, .*, B200; got 'H300'"):
        hardware.get("H300")


@pytest.mark.parametrize(
    ("device", "bits", "gbit_per_s", "flops_per_clock", "mhz"),
    [
        (accelerators.MI250_DIE, 4096, 3.2, 104 * 1024, 1700),
        (accelerators.TPU_V4, 4096, 2.344, 2 * 4 * 128 * 128 * 2, 1050),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_accelerators_are_their_units_times_clocks(device, bits, gbit_per_s, flops_per_clock, mhz):
    assert device.hbm_bytes_per_s == pytest.approx(bits / 8 * gbit_per_s * 1e9, rel=0.004)
    assert device.matmul_flops_per_s == pytest.approx(flops_per_clock * mhz * 1e6, rel=0.004)
    stated = {field.name for field in dataclasses.fields(device)} - {"name", "sources"}
    assert device.sources.keys() == {name for name in stated if getattr(device, name) is not None}
