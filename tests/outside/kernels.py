"""CUDA kernels."""

# numba.cuda describes its device API by stubs that a type checker takes at their word.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportOptionalSubscript=false

import math

from numba import cuda, float32


@cuda.jit
def scale_right(x, y, a):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        y[i] = x[i] * a


@cuda.jit
def scale_by_hand(x, y, a):
    e = cuda.threadIdx.x + cuda.blockIdx.x * cuda.blockDim.x
    if e >= x.shape[0]:
        return
    y[e] = a * x[e]


@cuda.jit
def scale_no_guard(x, y, a):
    e = cuda.grid(1)
    y[e] = a * x[e]


@cuda.jit
def scale_guard_too_wide(x, y, a):
    e = cuda.grid(1)
    if e <= x.shape[0]:
        y[e] = a * x[e]


@cuda.jit
def scale_thread_only(x, y, a):
    e = cuda.threadIdx.x
    if e < x.shape[0]:
        y[e] = a * x[e]


@cuda.jit
def scale_reads_everything(x, y, a):
    e = cuda.grid(1)
    for i in range(x.shape[0]):
        v = a * x[i]
        if i == e:
            y[i] = v


@cuda.jit
def scale_guard_block(x, y, a):
    e = cuda.grid(1)
    if e < x.shape[0] - 1:
        y[e] = a * x[e]


@cuda.jit
def copy_right(x, y):
    col, row = cuda.grid(2)
    if row < x.shape[0] and col < x.shape[1]:
        y[row, col] = x[row, col]


@cuda.jit
def copy_swapped(x, y):
    row, col = cuda.grid(2)
    if row < x.shape[0] and col < x.shape[1]:
        y[row, col] = x[row, col]


@cuda.jit
def copy_uncoalesced(x, y):
    t = cuda.threadIdx.x + 32 * cuda.threadIdx.y
    row = cuda.blockIdx.y * 8 + t % 8
    col = cuda.blockIdx.x * 32 + t // 8
    if row < x.shape[0] and col < x.shape[1]:
        y[row, col] = x[row, col]


@cuda.jit
def copy_no_column_guard(x, y):
    col, row = cuda.grid(2)
    if row < x.shape[0]:
        y[row, col] = x[row, col]


@cuda.jit
def copy_row_guard_on_columns(x, y):
    col, row = cuda.grid(2)
    if row < x.shape[1] and col < x.shape[0]:
        y[row, col] = x[row, col]


@cuda.jit
def transpose_padded(x, y):
    t = cuda.shared.array((32, 33), float32)
    a, b = cuda.threadIdx.x, cuda.threadIdx.y
    for up in range(4):
        r = 32 * cuda.blockIdx.y + b + 8 * up
        c = 32 * cuda.blockIdx.x + a
        if r < x.shape[0] and c < x.shape[1]:
            t[a, b + 8 * up] = x[r, c]
    cuda.syncthreads()
    for up in range(4):
        r = 32 * cuda.blockIdx.x + b + 8 * up
        c = 32 * cuda.blockIdx.y + a
        if r < x.shape[1] and c < x.shape[0]:
            y[r, c] = t[b + 8 * up, a]


@cuda.jit
def transpose_swizzled(x, y):
    t = cuda.shared.array((32, 32), float32)
    a, b = cuda.threadIdx.x, cuda.threadIdx.y
    for up in range(4):
        i = b + 8 * up
        r = 32 * cuda.blockIdx.y + i
        c = 32 * cuda.blockIdx.x + a
        if r < x.shape[0] and c < x.shape[1]:
            t[i, a ^ i] = x[r, c]
    cuda.syncthreads()
    for up in range(4):
        i = b + 8 * up
        r = 32 * cuda.blockIdx.x + i
        c = 32 * cuda.blockIdx.y + a
        if r < x.shape[1] and c < x.shape[0]:
            y[r, c] = t[a, i ^ a]


@cuda.jit
def transpose_conflicts(x, y):
    t = cuda.shared.array((32, 32), float32)
    a, b = cuda.threadIdx.x, cuda.threadIdx.y
    for up in range(4):
        r = 32 * cuda.blockIdx.y + b + 8 * up
        c = 32 * cuda.blockIdx.x + a
        if r < x.shape[0] and c < x.shape[1]:
            t[b + 8 * up, a] = x[r, c]
    cuda.syncthreads()
    for up in range(4):
        r = 32 * cuda.blockIdx.x + b + 8 * up
        c = 32 * cuda.blockIdx.y + a
        if r < x.shape[1] and c < x.shape[0]:
            y[r, c] = t[a, b + 8 * up]


@cuda.jit
def transpose_no_barrier(x, y):
    t = cuda.shared.array((32, 33), float32)
    a, b = cuda.threadIdx.x, cuda.threadIdx.y
    for up in range(4):
        r = 32 * cuda.blockIdx.y + b + 8 * up
        c = 32 * cuda.blockIdx.x + a
        if r < x.shape[0] and c < x.shape[1]:
            t[b + 8 * up, a] = x[r, c]
    for up in range(4):
        r = 32 * cuda.blockIdx.x + b + 8 * up
        c = 32 * cuda.blockIdx.y + a
        if r < x.shape[1] and c < x.shape[0]:
            y[r, c] = t[a, b + 8 * up]


@cuda.jit
def transpose_direct(x, y):
    for up in range(4):
        r = 32 * cuda.blockIdx.y + cuda.threadIdx.y + 8 * up
        c = 32 * cuda.blockIdx.x + cuda.threadIdx.x
        if r < x.shape[0] and c < x.shape[1]:
            y[c, r] = x[r, c]


@cuda.jit
def transpose_blocks_not_swapped(x, y):
    t = cuda.shared.array((32, 33), float32)
    a, b = cuda.threadIdx.x, cuda.threadIdx.y
    for up in range(4):
        r = 32 * cuda.blockIdx.y + b + 8 * up
        c = 32 * cuda.blockIdx.x + a
        if r < x.shape[0] and c < x.shape[1]:
            t[b + 8 * up, a] = x[r, c]
    cuda.syncthreads()
    for up in range(4):
        r = 32 * cuda.blockIdx.y + b + 8 * up
        c = 32 * cuda.blockIdx.x + a
        if r < x.shape[1] and c < x.shape[0]:
            y[r, c] = t[a, b + 8 * up]


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


@cuda.jit
def flash_right(gQ, gK, gV, gO, gLSE, scale):
    sK = cuda.shared.array((16, 8), float32)
    sV = cuda.shared.array((16, 8), float32)
    q = cuda.local.array(8, float32)
    o = cuda.local.array(8, float32)
    t = cuda.threadIdx.x
    row = cuda.grid(1)
    for e in range(8):
        o[e] = float32(0)
        q[e] = gQ[row, e] * scale if row < gQ.shape[0] else float32(0)
    m, l = float32(-1e30), float32(0)
    for first in range(0, gK.shape[0], 16):
        n = min(16, gK.shape[0] - first)
        if t < n:
            for e in range(8):
                sK[t, e] = gK[first + t, e]
                sV[t, e] = gV[first + t, e]
        cuda.syncthreads()
        for j in range(n):
            s = float32(0)
            for e in range(8):
                s += q[e] * sK[j, e]
            new = max(m, s)
            old, p = math.exp(m - new), math.exp(s - new)
            l = l * old + p
            for e in range(8):
                o[e] = o[e] * old + p * sV[j, e]
            m = new
        cuda.syncthreads()
    if row < gQ.shape[0]:
        for e in range(8):
            gO[row, e] = o[e] / l
        gLSE[row] = m + math.log(l)


@cuda.jit
def flash_starts_at_zero(gQ, gK, gV, gO, gLSE, scale):
    sK = cuda.shared.array((16, 8), float32)
    sV = cuda.shared.array((16, 8), float32)
    q = cuda.local.array(8, float32)
    o = cuda.local.array(8, float32)
    t = cuda.threadIdx.x
    row = cuda.grid(1)
    for e in range(8):
        o[e] = float32(0)
        q[e] = gQ[row, e] * scale if row < gQ.shape[0] else float32(0)
    m, l = float32(0), float32(0)
    for first in range(0, gK.shape[0], 16):
        n = min(16, gK.shape[0] - first)
        if t < n:
            for e in range(8):
                sK[t, e] = gK[first + t, e]
                sV[t, e] = gV[first + t, e]
        cuda.syncthreads()
        for j in range(n):
            s = float32(0)
            for e in range(8):
                s += q[e] * sK[j, e]
            new = max(m, s)
            old, p = math.exp(m - new), math.exp(s - new)
            l = l * old + p
            for e in range(8):
                o[e] = o[e] * old + p * sV[j, e]
            m = new
        cuda.syncthreads()
    if row < gQ.shape[0]:
        for e in range(8):
            gO[row, e] = o[e] / l
        gLSE[row] = m + math.log(l)


@cuda.jit
def flash_no_second_barrier(gQ, gK, gV, gO, gLSE, scale):
    sK = cuda.shared.array((16, 8), float32)
    sV = cuda.shared.array((16, 8), float32)
    q = cuda.local.array(8, float32)
    o = cuda.local.array(8, float32)
    t = cuda.threadIdx.x
    row = cuda.grid(1)
    for e in range(8):
        o[e] = float32(0)
        q[e] = gQ[row, e] * scale if row < gQ.shape[0] else float32(0)
    m, l = float32(-1e30), float32(0)
    for first in range(0, gK.shape[0], 16):
        n = min(16, gK.shape[0] - first)
        if t < n:
            for e in range(8):
                sK[t, e] = gK[first + t, e]
                sV[t, e] = gV[first + t, e]
        cuda.syncthreads()
        for j in range(n):
            s = float32(0)
            for e in range(8):
                s += q[e] * sK[j, e]
            new = max(m, s)
            old, p = math.exp(m - new), math.exp(s - new)
            l = l * old + p
            for e in range(8):
                o[e] = o[e] * old + p * sV[j, e]
            m = new
    if row < gQ.shape[0]:
        for e in range(8):
            gO[row, e] = o[e] / l
        gLSE[row] = m + math.log(l)


@cuda.jit
def flash_no_tail_mask(gQ, gK, gV, gO, gLSE, scale):
    sK = cuda.shared.array((16, 8), float32)
    sV = cuda.shared.array((16, 8), float32)
    q = cuda.local.array(8, float32)
    o = cuda.local.array(8, float32)
    t = cuda.threadIdx.x
    row = cuda.grid(1)
    for e in range(8):
        o[e] = float32(0)
        q[e] = gQ[row, e] * scale if row < gQ.shape[0] else float32(0)
    m, l = float32(-1e30), float32(0)
    for first in range(0, gK.shape[0], 16):
        for e in range(8):
            sK[t, e] = gK[first + t, e] if first + t < gK.shape[0] else float32(0)
            sV[t, e] = gV[first + t, e] if first + t < gK.shape[0] else float32(0)
        cuda.syncthreads()
        for j in range(16):
            s = float32(0)
            for e in range(8):
                s += q[e] * sK[j, e]
            new = max(m, s)
            old, p = math.exp(m - new), math.exp(s - new)
            l = l * old + p
            for e in range(8):
                o[e] = o[e] * old + p * sV[j, e]
            m = new
        cuda.syncthreads()
    if row < gQ.shape[0]:
        for e in range(8):
            gO[row, e] = o[e] / l
        gLSE[row] = m + math.log(l)


@cuda.jit
def flash_early_return(gQ, gK, gV, gO, gLSE, scale):
    sK = cuda.shared.array((16, 8), float32)
    sV = cuda.shared.array((16, 8), float32)
    q = cuda.local.array(8, float32)
    o = cuda.local.array(8, float32)
    t = cuda.threadIdx.x
    row = cuda.grid(1)
    if row >= gQ.shape[0]:
        return
    for e in range(8):
        o[e] = float32(0)
        q[e] = gQ[row, e] * scale
    m, l = float32(-1e30), float32(0)
    for first in range(0, gK.shape[0], 16):
        n = min(16, gK.shape[0] - first)
        if t < n:
            for e in range(8):
                sK[t, e] = gK[first + t, e]
                sV[t, e] = gV[first + t, e]
        cuda.syncthreads()
        for j in range(n):
            s = float32(0)
            for e in range(8):
                s += q[e] * sK[j, e]
            new = max(m, s)
            old, p = math.exp(m - new), math.exp(s - new)
            l = l * old + p
            for e in range(8):
                o[e] = o[e] * old + p * sV[j, e]
            m = new
        cuda.syncthreads()
    for e in range(8):
        gO[row, e] = o[e] / l
    gLSE[row] = m + math.log(l)


@cuda.jit
def flash_from_hbm(gQ, gK, gV, gO, gLSE, scale):
    o = cuda.local.array(8, float32)
    row = cuda.grid(1)
    if row < gQ.shape[0]:
        for e in range(8):
            o[e] = float32(0)
        m, l = float32(-1e30), float32(0)
        for j in range(gK.shape[0]):
            s = float32(0)
            for e in range(8):
                s += gQ[row, e] * gK[j, e] * scale
            new = max(m, s)
            old, p = math.exp(m - new), math.exp(s - new)
            l = l * old + p
            for e in range(8):
                o[e] = o[e] * old + p * gV[j, e]
            m = new
        for e in range(8):
            gO[row, e] = o[e] / l
        gLSE[row] = m + math.log(l)


@cuda.jit
def dkdv_right(gQ, gK, gV, gdO, gLSE, gDelta, gdK, gdV, scale):
    sQ = cuda.shared.array((16, 8), float32)
    sG = cuda.shared.array((16, 8), float32)
    sL = cuda.shared.array(16, float32)
    sD = cuda.shared.array(16, float32)
    k = cuda.local.array(8, float32)
    v = cuda.local.array(8, float32)
    dk = cuda.local.array(8, float32)
    dv = cuda.local.array(8, float32)
    t = cuda.threadIdx.x
    key = cuda.grid(1)
    mine = key < gK.shape[0]
    for e in range(8):
        k[e] = gK[key, e] if mine else float32(0)
        v[e] = gV[key, e] if mine else float32(0)
        dk[e] = float32(0)
        dv[e] = float32(0)
    for first in range(0, gQ.shape[0], 16):
        n = min(16, gQ.shape[0] - first)
        if t < n:
            sL[t] = gLSE[first + t]
            sD[t] = gDelta[first + t]
            for e in range(8):
                sQ[t, e] = gQ[first + t, e]
                sG[t, e] = gdO[first + t, e]
        cuda.syncthreads()
        for i in range(n):
            s, dp = float32(0), float32(0)
            for e in range(8):
                s += sQ[i, e] * k[e]
                dp += sG[i, e] * v[e]
            p = math.exp(s * scale - sL[i])
            ds = scale * p * (dp - sD[i])
            for e in range(8):
                dv[e] += p * sG[i, e]
                dk[e] += ds * sQ[i, e]
        cuda.syncthreads()
    if mine:
        for e in range(8):
            gdK[key, e] = dk[e]
            gdV[key, e] = dv[e]


@cuda.jit
def dkdv_scale_forgotten(gQ, gK, gV, gdO, gLSE, gDelta, gdK, gdV, scale):
    sQ = cuda.shared.array((16, 8), float32)
    sG = cuda.shared.array((16, 8), float32)
    k = cuda.local.array(8, float32)
    v = cuda.local.array(8, float32)
    dk = cuda.local.array(8, float32)
    dv = cuda.local.array(8, float32)
    t = cuda.threadIdx.x
    key = cuda.grid(1)
    mine = key < gK.shape[0]
    for e in range(8):
        k[e] = gK[key, e] if mine else float32(0)
        v[e] = gV[key, e] if mine else float32(0)
        dk[e] = float32(0)
        dv[e] = float32(0)
    for first in range(0, gQ.shape[0], 16):
        n = min(16, gQ.shape[0] - first)
        if t < n:
            for e in range(8):
                sQ[t, e] = gQ[first + t, e]
                sG[t, e] = gdO[first + t, e]
        cuda.syncthreads()
        for i in range(n):
            s, dp = float32(0), float32(0)
            for e in range(8):
                s += sQ[i, e] * k[e]
                dp += sG[i, e] * v[e]
            p = math.exp(s * scale - gLSE[first + i])
            ds = p * (dp - gDelta[first + i])
            for e in range(8):
                dv[e] += p * sG[i, e]
                dk[e] += ds * sQ[i, e]
        cuda.syncthreads()
    if mine:
        for e in range(8):
            gdK[key, e] = dk[e]
            gdV[key, e] = dv[e]


@cuda.jit
def dkdv_stale_tail(gQ, gK, gV, gdO, gLSE, gDelta, gdK, gdV, scale):
    sQ = cuda.shared.array((16, 8), float32)
    sG = cuda.shared.array((16, 8), float32)
    sL = cuda.shared.array(16, float32)
    sD = cuda.shared.array(16, float32)
    k = cuda.local.array(8, float32)
    v = cuda.local.array(8, float32)
    dk = cuda.local.array(8, float32)
    dv = cuda.local.array(8, float32)
    t = cuda.threadIdx.x
    key = cuda.grid(1)
    mine = key < gK.shape[0]
    for e in range(8):
        k[e] = gK[key, e] if mine else float32(0)
        v[e] = gV[key, e] if mine else float32(0)
        dk[e] = float32(0)
        dv[e] = float32(0)
    for first in range(0, gQ.shape[0], 16):
        if first + t < gQ.shape[0]:
            sL[t] = gLSE[first + t]
            sD[t] = gDelta[first + t]
            for e in range(8):
                sQ[t, e] = gQ[first + t, e]
                sG[t, e] = gdO[first + t, e]
        cuda.syncthreads()
        for i in range(16):
            s, dp = float32(0), float32(0)
            for e in range(8):
                s += sQ[i, e] * k[e]
                dp += sG[i, e] * v[e]
            p = math.exp(s * scale - sL[i])
            ds = scale * p * (dp - sD[i])
            for e in range(8):
                dv[e] += p * sG[i, e]
                dk[e] += ds * sQ[i, e]
        cuda.syncthreads()
    if mine:
        for e in range(8):
            gdK[key, e] = dk[e]
            gdV[key, e] = dv[e]


ANSWERS = {
    "scale_kernel": {
        "right": [scale_right, scale_by_hand],
        "wrong": [
            (scale_no_guard, r"out|bound|past|range|beyond|outside"),
            (scale_guard_too_wide, r"out|bound|past|range|beyond|outside"),
            (scale_thread_only, r"never|NaN|block|written|same"),
            (scale_reads_everything, r"\bx\b|read|load"),
            (scale_guard_block, r"never|NaN|written"),
        ],
    },
    "copy_kernel": {
        "right": [copy_right],
        "wrong": [
            (copy_swapped, r"sector|coalesc|never|written"),
            (copy_uncoalesced, r"sector|coalesc"),
            (copy_no_column_guard, r"out|bound|past|range|beyond|outside"),
            (copy_row_guard_on_columns, r"out|bound|never|NaN|written"),
        ],
    },
    "transpose_kernel": {
        "right": [transpose_padded, transpose_swizzled],
        "wrong": [
            (transpose_conflicts, r"bank|conflict"),
            (transpose_no_barrier, r"race|barrier|sync|wait"),
            (transpose_direct, r"sector|coalesc|shared"),
            (transpose_blocks_not_swapped, r"\by\b|out|never|written"),
        ],
    },
    "row_sum_kernel": {
        "right": [sum_tree, sum_shuffles],
        "wrong": [
            (sum_tree_one_barrier, r"race|barrier|sync|wait"),
            (sum_everyone_stores, r"race|\by\b|written"),
            (sum_one_warp, r"\by\b"),
            (sum_barrier_in_branch, r"barrier|sync|deadlock|wait"),
            (sum_first_64, r"\by\b|\bx\b"),
        ],
    },
    "row_lse_kernel": {
        "right": [lse_right],
        "wrong": [
            (lse_starts_at_zero, r"start|-inf"),
            (lse_naive, r"\by\b|overflow|inf"),
            (lse_two_passes, r"\bx\b|once|twice|load"),
            (lse_lanes_not_rescaled, r"\by\b"),
            (lse_nan_for_short_rows, r"NaN|\by\b"),
        ],
    },
    "flash_kernel": {
        "right": [flash_right],
        "wrong": [
            (flash_no_second_barrier, r"race|barrier|sync|wait"),
            (flash_starts_at_zero, r"start|-inf"),
            (flash_no_tail_mask, r"gO|gLSE"),
            (flash_early_return, r"barrier|sync|race|returned|uninit|never|shared|written|thread"),
            (flash_from_hbm, r"gK|gQ|shared|once|load"),
        ],
    },
    "dkdv_kernel": {
        "right": [dkdv_right],
        "wrong": [
            (dkdv_scale_forgotten, r"gdK|gLSE|scale"),
            (dkdv_stale_tail, r"gdK|gdV|shared|never|written|uninit"),
        ],
    },
}
