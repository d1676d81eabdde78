"""Views of a recorded run: panels that show in terminals and notebooks, and the stepper.

Reading order: `replay` (any moment of a log) and its parts `checked`, `steps` and `residency`;
`rows`, `grid`, `costs`, and with them `moment` (what panels are told); `glyphs`, `sections`,
`grid_panel`, `row_panel`, `hbm_panel`, `panels`, `frame` (what is shown); `plain`, `export` (frames
outside the stepper); `align`, `breakpoints` (two runs, places in a run); `session`, `prompt`,
`help`, `stage`, `player`, `app` (the stepper); `sources`, `show`, `cli` (the command).

>>> from flash_numba.problem import Problem
>>> from simulator.run import simulate
>>> from simulator.viewer.frame import frame
>>> from simulator.viewer.moment import Moment
>>> from simulator.viewer.replay import Replay
>>> log = simulate("flash2", Problem(256, 256, 64), record=True).log
>>> picture = frame(Moment(Replay(log), event=40), width=100, height=30)
"""
