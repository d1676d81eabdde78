"""Builds the two functions through which a rewritten kernel touches an array.

They are the inner loop of every trace, so their text is put together for the array at hand - its
number of axes, what is checked, whether accesses are counted - and compiled once for each such
combination; all else they need are closure variables.
"""

from __future__ import annotations

import functools

from .scalars import CASTS, dtype_name, from_memory

TEXT_NAME = "<traced array>"
"""The file that the two functions are said to stand in."""
_TEMPLATE = """
def make(array, append, flat, valid, convert, wrap, stored, outside, unset, sized,
         {sizes} start, scale, tag, ones, per, alike):
    def get({index} code):
        if {inside}:
            at = {offset}
            {followed_load}
            {log}
            {check_valid}
            return {read}
        return outside(array, ({index}), code)

    def set(value, {index} code):
        if {inside}:
            at = {offset}
            {followed_store}
            {log}
            flat[at] = {written}
            {mark_valid}
            {keep_value}
            return
        outside(array, ({index}), code)

    return get, set
"""


@functools.cache
def _factory(ndim, counting, checked, per_element, converts, sampling, integers, itemsize):
    coded = "code" if per_element == 1 else "sized(code, scale)"
    index = "".join(f"i{axis}, " for axis in range(ndim))
    inside = " and ".join(f"0 <= i{a} < n{a}" for a in range(ndim)) or "True"
    offset = " + ".join(["start", *(f"i{a} * s{a}" for a in range(ndim))])
    unwritten = "not valid[at]" if per_element == 1 else "valid[at * per : at * per + per] != ones"
    read = "convert(flat[at])" if converts else "flat[at]"
    followed_load = followed_store = "pass"
    if sampling:
        followed_load = "where, at = at, alike.element(array, at, code)"
        followed_store = "at = alike.element(array, at, code); "
        followed_store += f"alike.stored(array, at, {itemsize}, code, value)"
        if integers:
            read = f"alike.loaded(array, where, {read})"
    text = _TEMPLATE.format(
        index=index,
        inside=inside,
        offset=offset,
        sizes="".join(f"n{a}, s{a}, " for a in range(ndim)),
        log=f"append((at * scale << 16) + (tag + {coded}))" if counting else "pass",
        check_valid=f"if {unwritten}: unset(array, at, code)" if checked else "pass",
        read=read,
        followed_load=followed_load,
        followed_store=followed_store,
        written="wrap(value)" if converts else "value",
        mark_valid=(
            "pass"
            if not checked
            else "valid[at] = 1"
            if per_element == 1
            else "valid[at * per : at * per + per] = ones"
        ),
        keep_value="stored.append(value)" if counting else "pass",
    )
    namespace: dict = {}
    exec(compile(text, TEXT_NAME, "exec"), namespace)
    return namespace["make"]


def make_access(array):
    """``get(i, j, ..., code)`` and ``set(value, i, j, ..., code)`` of a traced array."""
    runtime, memory = array.runtime, array.memory
    convert = from_memory(dtype_name(array.dtype))
    per = array.itemsize // memory.granule
    if memory.valid is not None and per * memory.granule != array.itemsize:
        raise runtime.error("unsupported", f"{memory.name} seen as {array.itemsize}-byte elements")
    make = _factory(
        array.ndim,
        runtime.counting,
        memory.valid is not None,
        per,
        convert is not None,
        runtime.alike is not None,
        array.dtype.kind in "iub" and array.itemsize != 2,  # 16 bits may hold half a float
        array.itemsize,
    )
    sizes = [one for pair in zip(array.shape, array.steps, strict=True) for one in pair]
    return make(
        array,
        runtime.log.words.append,
        array.flat(),
        memory.valid,
        convert,
        CASTS[dtype_name(array.dtype)],
        runtime.log.stored,
        runtime.outside,
        runtime.unset,
        runtime.sized,
        *sizes,
        array.start,
        array.itemsize,
        memory.base << 16,
        b"\1" * per,
        per,
        runtime.alike,
    )
