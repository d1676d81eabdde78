"""Store a tile by the copy engine or by plain stores, and read it, where a tool may look.

    compute-sanitizer --tool initcheck python benchmarks/stored_tile.py bulk

The reader finds what was stored either way, so that a tool that reports its reads has not seen the
copy engine write. `sanitize.py` runs both under initcheck. Needs a Hopper GPU.
"""

import sys

import numpy as np
from bulk_sectors import make_boxes

ROWS, COLUMNS, HEAD = 64, 64, 1
SHAPE = 1, ROWS, 2, COLUMNS


def make_plain():
    """Kernel ``stored(gX)``: the numbers 0, 1, ... into the tile of one head."""
    from flash_numba.device.numba_cuda import cuda, kernel

    @kernel(32)
    def stored(gX):
        for i in range(cuda.threadIdx.x, ROWS * COLUMNS, 32):
            gX[0, i // COLUMNS, HEAD, i % COLUMNS] = i

    return stored


def make_reader():
    """Kernel ``read(gX, gY)``: that tile, copied into `gY` (1, ROWS, 1, COLUMNS)."""
    from flash_numba.device.numba_cuda import cuda, kernel

    @kernel(32)
    def read(gX, gY):
        for i in range(cuda.threadIdx.x, ROWS * COLUMNS, 32):
            row, column = i // COLUMNS, i % COLUMNS
            gY[0, row, 0, column] = gX[0, row, HEAD, column]

    return read


def store_and_read(how: str) -> np.ndarray:
    """What a kernel reads of a tile in new memory after one launch has stored it.

    Parameters
    ----------
    how : "bulk" or "plain"
        A bulk store's tile lies swizzled in shared memory: its rows come out permuted.

    Returns
    -------
    uint16 array of shape (ROWS, COLUMNS)
    """
    from flash_numba.arrays import DeviceArray
    from flash_numba.device.hopper.tensor_map import TensorMap
    from flash_numba.device.numba_cuda import cuda
    from flash_numba.launch import launch

    tile, copy = (cuda.device_array(s, np.float16) for s in (SHAPE, (1, ROWS, 1, COLUMNS)))
    gX, gY = DeviceArray.of(tile), DeviceArray.of(copy)
    if how == "bulk":
        boxes = make_boxes("store", ROWS, COLUMNS)
        launch(boxes, 1, 32, 2 * ROWS * COLUMNS, (TensorMap(gX, ROWS, COLUMNS), 0, 0, 0))
    else:
        launch(make_plain(), 1, 32, 0, (gX,))
    launch(make_reader(), 1, 32, 0, (gX, gY))
    return copy.copy_to_host().view(np.uint16)[0, :, 0]


if __name__ == "__main__":
    found = store_and_read(sys.argv[1])
    assert np.array_equal(np.sort(found, axis=None), np.arange(ROWS * COLUMNS))
    print("KERNELS", "boxes" if sys.argv[1] == "bulk" else "stored", "read")
