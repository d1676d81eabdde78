"""The stepper in a notebook: a run, a frame of it, a slider over all of it."""

from __future__ import annotations

from typing import Any

from flash_numba.problem import Problem

from ..run import simulate
from ..viewer import breakpoints
from ..viewer.frame import frame
from ..viewer.moment import Moment
from ..viewer.replay import Replay

WIDTH, HEIGHT = 100, 26


def record(program: str, problem: Problem, *arrays: Any, **options: Any) -> Replay:
    """Run a program as `simulate` does, with its event log, for `frame_at` and `stepper`."""
    run = simulate(program, problem, *arrays, record=True, **options)
    assert run.log is not None
    return Replay(run.log)


def frame_at(run: Replay, place: str = "end") -> None:
    """Print a frame; `place` as for the stepper's `g`: ``"2,4"``, ``"event 40"``, ``"end"``."""
    print(_text(run, breakpoints.place(place, run)))


def stepper(run: Replay) -> None:
    """A slider over the events of a run, or its last frame where there are no widgets."""
    try:
        import ipywidgets
    except ImportError:
        frame_at(run)
        return
    slider = ipywidgets.IntSlider(
        value=run.steps.stops[0], max=len(run) - 1, description="event", readout=True
    )
    slider.layout.width = "90%"
    output = ipywidgets.HTML()

    def draw(change: Any = None) -> None:
        import html

        text = html.escape(_text(run, slider.value))
        output.value = f"<pre style='line-height:1.15;font-size:12px'>{text}</pre>"

    slider.observe(draw, "value")
    draw()
    from IPython.display import display

    display(ipywidgets.VBox([slider, output]))


def _text(run: Replay, event: int) -> str:
    return frame(Moment(run, event), WIDTH, HEIGHT, hints="").plain.rstrip()
