"""Views of a recorded run: panels that show in terminals and notebooks, and the stepper.

Reading order: `replay` (any moment of a log), `rows`, `grid`, `costs`, `moment`; `sections`,
`panels`, `frame` (what is shown); `app`, `plain`, `export` (where); `cli` (the options).

>>> from flash_numba.problem import Problem
>>> from simulator.run import simulate
>>> from simulator.viewer.frame import frame
>>> from simulator.viewer.moment import Moment
>>> from simulator.viewer.replay import Replay
>>> log = simulate("flash2", Problem(256, 256, 64), record=True).log
>>> picture = frame(Moment(Replay(log), event=40), width=100, height=30)
"""
