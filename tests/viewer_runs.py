"""Small recorded runs that the viewer's tests share."""

import functools
from typing import Any

import numpy as np

from flash_numba.problem import Problem
from simulator.run import simulate
from simulator.viewer.moment import Moment, View
from simulator.viewer.replay import Replay

PROGRAMS = ("flash1", "flash2", "flash2_two_kernel", "tiled")
RUNS = [(program, way) for program in PROGRAMS for way in ("forward", "backward")]

PROBLEMS = {
    "causal": {"seqlen_q": 37, "seqlen_k": 50, "head_dim": 6, "dtype": "fp32", "causal": True},
    "window": {"seqlen_q": 41, "seqlen_k": 41, "head_dim": 5, "dtype": "fp32", "window": (9, 3)},
    "full": {"seqlen_q": 16, "seqlen_k": 24, "head_dim": 4, "dtype": "fp16"},
    "unseen": {"seqlen_q": 40, "seqlen_k": 20, "head_dim": 4, "dtype": "fp32", "causal": True},
}


@functools.cache
def arrays(name) -> tuple[Problem, Any, Any, Any, Any]:
    """The problem, q, k, v and do."""
    problem = Problem(**PROBLEMS[name])
    rng = np.random.default_rng(5)
    d, n, m = problem.head_dim, problem.seqlen_q, problem.seqlen_k
    q, k, v, do = (rng.standard_normal((1, rows, 1, d)) for rows in (n, m, m, n))
    return problem, q, k, v, do


@functools.cache
def recorded(program, direction, name="causal", tile_m=16, tile_n=8):
    problem, q, k, v, do = arrays(name)
    options = {"direction": direction, "tile_m": tile_m, "tile_n": tile_n, "record": True}
    return simulate(program, problem, q, k, v, do if direction == "backward" else None, **options)


def log_of(*run):
    """The run's event log."""
    log = recorded(*run).log
    assert log is not None
    return log


@functools.cache
def replay_of(program="flash2", direction="forward", name="causal", tile_m=16, tile_n=8):
    return Replay(log_of(program, direction, name, tile_m, tile_n))


def moment_of(event, *run, **view):
    return Moment(replay_of(*run), event, View(**view))
