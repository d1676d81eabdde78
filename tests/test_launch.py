"""What a launch packs and checks, without a GPU."""

import ctypes
import struct
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("numba_cuda")

from flash_numba import driver, launch
from flash_numba.arrays import DeviceArray
from flash_numba.device.numba_cuda import types
from flash_numba.device.unroll import annotate_loops
from flash_numba.kernels import arguments
from flash_numba.kernels.arguments import tile_kinds
from flash_numba.masks import Mask
from flash_numba.packing import SeedWord, pack
from flash_numba.problem import Problem
from flash_numba.tiling import FULL, PARTIAL, SKIPPED, BlockMask, make_key_tiles, make_query_span

ROWS = DeviceArray(4096, (2, 8, 3, 64), (6144, 768, 256, 4), "fp32")


def test_argument_types_and_slots_follow_numbas_calling_convention():
    arguments = (ROWS, 3, (0.5, (np.uint64(2**63), ())))
    assert launch.argument_types(arguments) == types.Tuple(
        (
            types.Array(types.float32, 4, "A"),
            types.int64,
            types.Tuple((types.float32, types.Tuple((types.uint64, types.Tuple(()))))),
        )
    )
    packed = pack(arguments)
    words = struct.unpack(f"<{len(packed.data) // 8}q", packed.data)
    assert words[:7] == (0, 0, 2 * 8 * 3 * 64, 4, 4096, 2, 8)
    assert words[9:14] == (6144, 768, 256, 4, 3)
    assert struct.unpack("<f4xQ", packed.data[-16:]) == (0.5, 2**63)
    assert packed.starts == tuple(range(0, 8 * len(words), 8))
    assert packed.patches == ()


@pytest.mark.parametrize(
    ("change", "allowed"),
    [
        ({}, True),
        ({"pointer": 4100}, False),
        ({"strides": (6144, 768, 256, 8)}, False),
        ({"strides": (6144, 772, 256, 4)}, False),
        ({"strides": (0, 0, 0, 4)}, True),
        ({"shape": (2, 8, 3, 62)}, False),
        ({"shape": (1, 8, 3, 64), "strides": (4, 768, 256, 4)}, True),
        ({"dtype": "fp16", "strides": (1032, 136, 136, 2), "pointer": 8}, True),
    ],
)
def test_allows_vectors(change, allowed):
    assert launch.allows_vectors(ROWS._replace(**change)) is allowed


class Copy:
    """Stands for an array that was copied to a GPU."""

    def __init__(self, array):
        self.array = array
        self.__cuda_array_interface__ = array.__array_interface__


def test_upload_copies_an_array_once_and_keeps_its_stride_0():
    slopes = np.broadcast_to(np.arange(3.0), (5, 3))
    (view, number), owners = launch.upload((slopes, np.int32(7)), Copy)
    assert owners[0].array.dtype == np.float32
    assert owners[0].array.tolist() == [[0, 1, 2]]
    assert (view.shape, view.strides, view.dtype, number) == ((5, 3), (0, 4), "fp32", 7)
    assert ctypes.c_float.from_address(view.pointer + 8).value == 2


def test_upload_hands_over_strides_that_are_not_0():
    once = np.broadcast_to(np.ones((1, 1), np.int8), (4, 1))
    (view,), owners = launch.upload((once,), Copy)
    assert owners[0].array.strides == (1, 1)
    assert (view.shape, view.strides) == ((4, 1), (0, 0))


def test_launch_of_no_block_does_nothing():
    assert launch.launch(None, 0, 128, 0, ()) is None


def test_too_many_blocks_are_refused():
    with pytest.raises(ValueError, match=r"fewer than 2\*\*31 blocks, got 2147483648"):
        launch.launch(None, 1 << 31, 128, 0, ())


def test_a_launch_outside_a_plan_has_all_its_words(monkeypatch):
    """The seed's, which a plan is handed at each run, are those of the arguments."""
    launched = []
    monkeypatch.setattr(launch, "_function", lambda *a: (SimpleNamespace(handle=None), None))
    monkeypatch.setattr(launch.cuda, "get_current_device", lambda: SimpleNamespace(id=0))

    def cuLaunchKernelEx(configuration, handle, parameters, extra):
        launched.append([ctypes.c_uint64.from_address(at).value for at in parameters])
        return 0

    found = SimpleNamespace(cuLaunchKernelEx=cuLaunchKernelEx)
    monkeypatch.setattr(driver, "driver", lambda: found)
    launch.launch(None, 1, 32, 0, (7, *SeedWord.pair(2**33 + 5)))
    assert launched == [[7, 5, 2]]


def stripes(batch, head, q_idx, k_idx, aux):
    return (q_idx // 6 + k_idx // 10) % 3 != 0


@pytest.mark.parametrize("tiles", [(6, 10), (4, 8), (12, 20), (5, 7), (64, 64)])
def test_block_list_for_other_tiles(tiles):
    problem = Problem(29, 43, 8, batch=2)
    listed = BlockMask.from_mask(Mask("stripes", stripes), problem, 6, 10)
    problem = Problem(29, 43, 8, batch=2, block_mask=listed)
    kinds = tile_kinds(problem, *tiles)
    rows, cols = np.ogrid[:29, :43]
    keep = stripes(0, 0, rows, cols, ())
    for m, n in np.ndindex(kinds.shape[2:]):
        part = keep[m * tiles[0] : (m + 1) * tiles[0], n * tiles[1] : (n + 1) * tiles[1]]
        want = FULL if part.all() else PARTIAL if part.any() else SKIPPED
        assert kinds[1, 0, m, n] == want


def test_each_pair_of_tile_sizes_has_a_list_of_its_own(monkeypatch):
    monkeypatch.setattr(arguments, "upload", lambda values: (values, []))
    mask = Mask("stripes", stripes)
    listed = BlockMask.from_mask(mask, Problem(29, 43, 8), 6, 10)
    problem = Problem(29, 43, 8, block_mask=listed)
    for tile_m, tile_n in ((8, 16), (16, 8), (8, 16)):
        *_, (kinds,), _ = arguments.extra_arguments(problem, tile_m, tile_n)
        assert kinds.shape == (1, 1, -(-29 // tile_m), -(-43 // tile_n))


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (9, 4)}, {"window": (0, 0)}])
@pytest.mark.parametrize(("n", "m"), [(40, 40), (50, 23), (23, 50), (1, 64)])
def test_query_span_holds_every_query_tile_that_visits(options, n, m):
    mask = Problem(n, m, 8, **options).range_mask
    key_range, aux = (mask.key_range, mask.aux) if mask else (None, ())
    key_tiles, span = make_key_tiles(key_range, True), make_query_span(key_range)
    sizes = n, m, 8, 16, aux
    for n_block in range(-(-m // 16)):
        start, stop = span(n_block, 0, 0, *sizes)
        for m_block in range(-(-n // 8)):
            visit = key_tiles(m_block, 0, 0, *sizes)
            visits = visit.start <= n_block < visit.stop
            assert not visits or start <= m_block < stop


LOOP = """define void @"f"() {
"entry":
  br label %"head"
"head":
  call void asm sideeffect "//UNROLL full", ""()
  br i1 %"x", label %"head", label %"exit"
"exit":
  ret void
}
"""


def test_marker_becomes_metadata_of_the_loop_around_it():
    text = annotate_loops(LOOP)
    assert "UNROLL" not in text
    assert '%"exit", !llvm.loop !900000' in text
    assert '!900001 = !{!"llvm.loop.unroll.full"}' in text
    assert annotate_loops("define void @f() {\n}\n") == "define void @f() {\n}\n"


def test_marker_outside_a_loop_is_an_error():
    with pytest.raises(ValueError, match="inside a loop"):
        annotate_loops(LOOP.replace('label %"head", label %"exit"', 'label %"exit", label %"exit"'))
