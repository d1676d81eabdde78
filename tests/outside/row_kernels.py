"""CUDA kernels that reduce rows: sums and logarithms of sums."""

# numba.cuda describes its device API by stubs that a type checker takes at their word.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportOptionalSubscript=false

import math

from numba import cuda, float32


@cuda.jit
def sum_tree(x, y):
    part = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    mine = float32(0)
    for c in range(t, x.shape[1], 64):
        mine += x[cuda.blockIdx.x, c]
    part[t] = mine
    width = 32
    while width > 0:
        cuda.syncthreads()
        if t < width:
            part[t] += part[t + width]
        width //= 2
    if t == 0:
        y[cuda.blockIdx.x] = part[0]


@cuda.jit
def sum_shuffles(x, y):
    half = cuda.shared.array(2, float32)
    t = cuda.threadIdx.x
    mine = float32(0)
    for c in range(t, x.shape[1], 64):
        mine += x[cuda.blockIdx.x, c]
    for k in (16, 8, 4, 2, 1):
        mine += cuda.shfl_xor_sync(0xFFFFFFFF, mine, k)
    if t % 32 == 0:
        half[t // 32] = mine
    cuda.syncthreads()
    if t == 0:
        y[cuda.blockIdx.x] = half[0] + half[1]


@cuda.jit
def sum_tree_one_barrier(x, y):
    part = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    mine = float32(0)
    for c in range(t, x.shape[1], 64):
        mine += x[cuda.blockIdx.x, c]
    part[t] = mine
    cuda.syncthreads()
    width = 32
    while width > 0:
        if t < width:
            part[t] += part[t + width]
        width //= 2
    if t == 0:
        y[cuda.blockIdx.x] = part[0]


@cuda.jit
def sum_everyone_stores(x, y):
    t = cuda.threadIdx.x
    mine = float32(0)
    for c in range(t, x.shape[1], 64):
        mine += x[cuda.blockIdx.x, c]
    y[cuda.blockIdx.x] += mine


@cuda.jit
def sum_one_warp(x, y):
    t = cuda.threadIdx.x
    mine = float32(0)
    for c in range(t, x.shape[1], 64):
        mine += x[cuda.blockIdx.x, c]
    for k in (16, 8, 4, 2, 1):
        mine += cuda.shfl_down_sync(0xFFFFFFFF, mine, k)
    if t == 0:
        y[cuda.blockIdx.x] = mine


@cuda.jit
def sum_by_the_first_warp(x, y):
    t = cuda.threadIdx.x
    if t < 32:
        mine = float32(0)
        for c in range(t, x.shape[1], 32):
            mine += x[cuda.blockIdx.x, c]
        for k in (16, 8, 4, 2, 1):
            mine += cuda.shfl_xor_sync(0xFFFFFFFF, mine, k)
        if t == 0:
            y[cuda.blockIdx.x] = mine


@cuda.jit
def sum_barrier_in_branch(x, y):
    part = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    mine = float32(0)
    for c in range(t, x.shape[1], 64):
        mine += x[cuda.blockIdx.x, c]
    part[t] = mine
    width = 32
    while width > 0:
        if t < width:
            cuda.syncthreads()
            part[t] += part[t + width]
        width //= 2
    if t == 0:
        y[cuda.blockIdx.x] = part[0]


@cuda.jit
def sum_first_64(x, y):
    part = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    part[t] = x[cuda.blockIdx.x, t] if t < x.shape[1] else float32(0)
    cuda.syncthreads()
    if t == 0:
        total = float32(0)
        for i in range(64):
            total += part[i]
        y[cuda.blockIdx.x] = total


@cuda.jit
def lse_right(x, y):
    lane, row = cuda.threadIdx.x, cuda.blockIdx.x
    top, total = float32(-math.inf), float32(0)
    for c in range(lane, x.shape[1], 32):
        s = x[row, c]
        if s > top:
            total = total * math.exp(top - s) + float32(1)
            top = s
        else:
            total += math.exp(s - top)
    for k in (16, 8, 4, 2, 1):
        other_top = cuda.shfl_xor_sync(0xFFFFFFFF, top, k)
        other_total = cuda.shfl_xor_sync(0xFFFFFFFF, total, k)
        new = max(top, other_top)
        if new > float32(-math.inf):
            total = total * math.exp(top - new) + other_total * math.exp(other_top - new)
        top = new
    if lane == 0:
        y[row] = top + math.log(total)


@cuda.jit
def lse_starts_at_zero(x, y):
    lane, row = cuda.threadIdx.x, cuda.blockIdx.x
    top, total = float32(0), float32(0)
    for c in range(lane, x.shape[1], 32):
        s = x[row, c]
        if s > top:
            total = total * math.exp(top - s) + float32(1)
            top = s
        else:
            total += math.exp(s - top)
    for k in (16, 8, 4, 2, 1):
        other_top = cuda.shfl_xor_sync(0xFFFFFFFF, top, k)
        other_total = cuda.shfl_xor_sync(0xFFFFFFFF, total, k)
        new = max(top, other_top)
        total = total * math.exp(top - new) + other_total * math.exp(other_top - new)
        top = new
    if lane == 0:
        y[row] = top + math.log(total)


@cuda.jit
def lse_naive(x, y):
    lane, row = cuda.threadIdx.x, cuda.blockIdx.x
    total = float32(0)
    for c in range(lane, x.shape[1], 32):
        total += math.exp(x[row, c])
    for k in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, k)
    if lane == 0:
        y[row] = math.log(total)


@cuda.jit
def lse_by_half_a_warp(x, y):
    lane, row = cuda.threadIdx.x, cuda.blockIdx.x
    top, total = float32(-1e30), float32(0)
    if lane < 16:
        for c in range(lane, x.shape[1], 16):
            s = x[row, c]
            new = max(top, s)
            total = total * math.exp(top - new) + math.exp(s - new)
            top = new
    for k in (16, 8, 4, 2, 1):
        other_top = cuda.shfl_xor_sync(0xFFFFFFFF, top, k)
        other_total = cuda.shfl_xor_sync(0xFFFFFFFF, total, k)
        new = max(top, other_top)
        total = total * math.exp(top - new) + other_total * math.exp(other_top - new)
        top = new
    if lane == 0:
        y[row] = top + math.log(total)


@cuda.jit
def lse_two_passes(x, y):
    lane, row = cuda.threadIdx.x, cuda.blockIdx.x
    top, total = float32(-math.inf), float32(0)
    for c in range(lane, x.shape[1], 32):
        top = max(top, x[row, c])
    for k in (16, 8, 4, 2, 1):
        top = max(top, cuda.shfl_xor_sync(0xFFFFFFFF, top, k))
    for c in range(lane, x.shape[1], 32):
        total += math.exp(x[row, c] - top)
    for k in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, k)
    if lane == 0:
        y[row] = top + math.log(total)


@cuda.jit
def lse_lanes_not_rescaled(x, y):
    lane, row = cuda.threadIdx.x, cuda.blockIdx.x
    top, total = float32(-math.inf), float32(0)
    for c in range(lane, x.shape[1], 32):
        new = max(top, x[row, c])
        total = total * math.exp(top - new) + math.exp(x[row, c] - new)
        top = new
    for k in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, k)
        top = max(top, cuda.shfl_xor_sync(0xFFFFFFFF, top, k))
    if lane == 0:
        y[row] = top + math.log(total)


@cuda.jit
def lse_nan_for_short_rows(x, y):
    lane, row = cuda.threadIdx.x, cuda.blockIdx.x
    top, total = float32(-math.inf), float32(0)
    for c in range(lane, x.shape[1], 32):
        s = x[row, c]
        new = max(top, s)
        total = total * math.exp(top - new) + math.exp(s - new)
        top = new
    for k in (16, 8, 4, 2, 1):
        other_top = cuda.shfl_xor_sync(0xFFFFFFFF, top, k)
        other_total = cuda.shfl_xor_sync(0xFFFFFFFF, total, k)
        new = max(top, other_top)
        total = total * math.exp(top - new) + other_total * math.exp(other_top - new)
        top = new
    if lane == 0:
        y[row] = top + math.log(total)


ANSWERS = {
    "row_sum_kernel": {
        "right": [sum_tree, sum_shuffles],
        "wrong": [
            (sum_tree_one_barrier, r"race|barrier|sync|wait"),
            (sum_everyone_stores, r"race|\by\b|written"),
            (sum_one_warp, r"\by\b"),
            (sum_by_the_first_warp, r"1 of the 2 warps of a block"),
            (sum_barrier_in_branch, r"barrier|sync|deadlock|wait"),
            (sum_first_64, r"\by\b|\bx\b"),
        ],
    },
    "row_lse_kernel": {
        "right": [lse_right],
        "wrong": [
            (lse_starts_at_zero, r"start|-inf"),
            (lse_naive, r"\by\b|overflow|inf"),
            (lse_by_half_a_warp, r"all lanes must share"),
            (lse_two_passes, r"\bx\b|once|twice|load"),
            (lse_lanes_not_rescaled, r"\by\b"),
            (lse_nan_for_short_rows, r"NaN|\by\b"),
        ],
    },
}
