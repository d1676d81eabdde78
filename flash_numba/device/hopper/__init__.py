"""Hopper's own instructions: bulk tensor copies, barriers in shared memory, warpgroup products.

`layouts` says how a tile lies in shared memory, `operands` how a product finds it there,
`tensor_map` how one in global memory is described to the copy engine, and `tma`, `mbarrier`,
`wgmma` and `warpgroups` hold one intrinsic an instruction, or one a sequence that must not be torn
apart.
"""
