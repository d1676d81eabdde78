"""``flash-numba bench``: the rungs on a GPU, beside torch's attention in the same run.

Reading order: `cells` (what is timed), `contenders` (our calls and torch's), `truth` (is the
result right), `gpu` (events and the machine), `compiling` (all kernels first, in many processes),
`measure` (one after the other, in turn), `results` (the JSON), `table`, `cli`.
"""
