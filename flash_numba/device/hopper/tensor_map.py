"""A tensor in global memory as the copy engine sees it: ``CUtensorMap``, a kernel argument.

The map goes by value, in a 64-byte aligned parameter that the kernel may take the address of
(``__grid_constant__`` in CUDA C++).
"""

from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

from ...arrays import is_copyable
from ..numba_cuda import NUMBA_CUDA, cgutils, ir, types
from .layouts import ITEM_BYTES

MAP_BYTES = 128
AXES = 4


class TensorMap(NamedTuple):
    """A (batch, seqlen, heads, columns) tensor and the box of it that one copy moves.

    Attributes
    ----------
    array : DeviceArray
        16-bit elements; on a CPU an array of the thread runner.
    rows, columns : int
        The box: `rows` of the seqlen axis, `columns` of the last axis.

    Notes
    -----
    Coordinates are (column, row, head, batch). Lines of ``columns * 2`` bytes are swizzled as in
    `layouts.SwizzledTile` with ``panel=columns``.
    """

    array: Any
    rows: int
    columns: int


@lru_cache(maxsize=256)
def encoded(tensor_map: TensorMap) -> bytes:
    """The 128 bytes of a ``CUtensorMap``.

    Raises
    ------
    ValueError
        If the engine cannot address such a tensor.
    """
    array, rows, columns = tensor_map
    if not is_copyable(array):
        raise ValueError(
            f"the copy engine needs neighbours in the last axis and 16-byte aligned rows, got "
            f"address {array.pointer:#x} and strides {array.strides}"
        )
    driver: Any = import_module("cuda.bindings.driver")
    batch, seqlen, heads, width = array.shape
    sizes = [width, seqlen, heads, batch]
    by_axis = array.strides[1], array.strides[2], array.strides[0]
    # The stride of an axis of one element is never used but must be valid.
    strides = [
        step if size > 1 else 16 for step, size in zip(by_axis, (seqlen, heads, batch), strict=True)
    ]
    types_ = driver.CUtensorMapDataType
    kind = {
        "fp16": types_.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        "bf16": types_.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    }[array.dtype]
    swizzle = driver.CUtensorMapSwizzle
    status, made = driver.cuTensorMapEncodeTiled(
        kind,
        AXES,
        array.pointer,
        [driver.cuuint64_t(max(size, 1)) for size in sizes],
        [driver.cuuint64_t(step) for step in strides],
        [driver.cuuint32_t(size) for size in (columns, rows, 1, 1)],
        [driver.cuuint32_t(1)] * AXES,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        {
            128: swizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            64: swizzle.CU_TENSOR_MAP_SWIZZLE_64B,
        }[columns * ITEM_BYTES],
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if int(status) != 0:
        raise RuntimeError(f"cuTensorMapEncodeTiled failed with CUDA error {int(status)}")
    return b"".join(int(word).to_bytes(8, "little") for word in made.opaque)


class TensorMapType(types.Type):
    """Numba's type of a tensor map argument."""

    def __init__(self):
        super().__init__(name="CUtensorMap")


tensor_map_type = TensorMapType()
_BLOB = ir.LiteralStructType([ir.ArrayType(ir.IntType(64), MAP_BYTES // 8)])


class _ByValue(ir.values.ArgumentAttributes):
    """NVVM's older IR has a plain ``byval``; llvmlite would print the type after it."""

    def _expand(self, name, typ):
        return name


def _make_by_value(builder) -> None:
    """Declare all map parameters of the kernel being built as by-value, aligned, constant."""
    function, module = builder.function, builder.function.module
    places = [i for i, arg in enumerate(function.args) if arg.type == _BLOB.as_pointer()]
    if "byval" in function.args[places[0]].attributes:
        return
    for place in places:
        function.args[place].attributes = _ByValue(["byval"])
        function.args[place].attributes.align = 64
    # Numba drops argument 0, the place of the result, later: `place` is the final number from 1 on.
    listed = module.add_metadata([ir.Constant(ir.IntType(32), place) for place in places])
    note = module.add_metadata((function, ir.MetaDataString(module, "grid_constant"), listed))
    cgutils.get_or_insert_named_metadata(module, "nvvm.annotations").add(note)


if NUMBA_CUDA:
    _models: Any = import_module("numba.cuda.datamodel.models")
    _register: Any = import_module("numba.cuda.extending").register_model

    @_register(TensorMapType)
    class TensorMapModel(_models.PrimitiveModel):
        """In a kernel the map is its address."""

        def __init__(self, dmm, fe_type):
            super().__init__(dmm, fe_type, _BLOB.as_pointer())

        def from_argument(self, builder, value):
            """Called once for each map of a kernel."""
            _make_by_value(builder)
            return value
