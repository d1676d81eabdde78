"""Functions in which a variable holds numbers of several types, for `test_threads_versions`.

Each takes two numbers; with unsigned ones it shows which type a variable has where.
"""

# pyright: reportPossiblyUnboundVariable=false

from numba import cuda, float32, uint32


def reassigned(x, y):
    d = x - y
    d += 300
    return d


def guarded(x, y):
    left = 0
    if y > 4:
        left = y
    return 1 if x - left < 0 else 2


def read_in_the_arm(x, y):
    """Within the arm `left` is still unsigned, and its negative as wide as it was."""
    left = 0
    low = 0
    if y > 4:
        left = y
        low = -left
    return low + (x - left) // 2


def of_a_choice(x, y):
    return abs(x - (y if y > 4 else -1)) + max(x, -1) - min(y, 255)


def largest(x, y):
    best = -1
    for k in range(3):
        if x * k - best > 0:
            best = y
    return best - 7


def previous(x, y):
    before = 0
    count = 0
    for _ in range(4):
        d = x - before
        if d < 0:
            count += 1
            continue
        before = y
        if count > 1:
            break
    else:
        before = 0.5
    return count + before


def found(x, y):
    k = 0
    at = -1
    while k < 9:
        if k == y:
            at = y
            break
        k += 1
    return x - at


def forever(x, y):
    v = x
    while True:
        v = v * 3
        if v - y > 100:
            break
    return v - 1000


def hashed(x, y):
    h = x ^ y
    h ^= h >> 15
    h *= 0x2C1B3C6D
    h ^= h >> 12
    return h >> 7


def a_parameter(x, y):
    v = x * y
    x = x / 32
    return v * x


def swapped(x, y):
    a = x
    b = 0
    a, b = b, a
    return (a - b) >> 1


def squared_before(x, y):
    """The product is of float32."""
    v = float32(x) * float32(0.1)
    w = v * v
    v = v * 0.5
    return w + v


@cuda.jit(device=True)
def inside(x, y):
    """Zero outside."""
    if y < x:
        return 0
    return y


def of_a_function(x, y):
    return x - inside(x, y) - 1


def nested(x, y):
    v = uint32(1)
    for k in range(3):
        if x > k:
            for _ in range(2):
                v = v + y
                if v > 100:
                    v = 0
        else:
            v = x
        if v == 3:
            return v - 5
    return v - 9


def sought(x, y):
    """`at` is assigned on some ways only, and read on no other."""
    hit = False
    for k in range(9):
        if k == y:
            at = k
            hit = True
    if hit:
        at = at * 0.5
        return at - x
    return 0.25


def never_entered(x, y):
    for _ in range(y - 7):
        if x > 5:
            continue
        v = y
        v = v * 0.5
    if y > 7 and x <= 5:
        return v
    return 0.25


FUNCTIONS = (
    reassigned,
    guarded,
    read_in_the_arm,
    of_a_choice,
    largest,
    previous,
    found,
    forever,
    hashed,
    a_parameter,
    swapped,
    squared_before,
    nested,
    sought,
    never_entered,
)
