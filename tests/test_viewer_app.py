import asyncio

import pytest
from rich.console import Console
from textual import events
from textual.binding import Binding
from viewer_runs import arrays, log_of

from simulator.viewer.app import Stepper
from simulator.viewer.breakpoints import Breakpoint
from simulator.viewer.glyphs import ASCII
from simulator.viewer.help import KEYS, HelpScreen
from simulator.viewer.player import Player
from simulator.viewer.rows import max_changes
from simulator.viewer.session import Saved, Session, program_names
from simulator.viewer.stage import Stage

TYPED = {" ": "space", ",": "comma", "_": "underscore"}


def session():
    problem, q, k, v, _ = arrays("causal")
    return Session(problem, q, k, v, tile_m=16, tile_n=8, tokens=[f"w{i}" for i in range(37)])


def drive(script, size=(80, 24), **options):
    """Run the app headless and hand it to an async script."""
    source = options.pop("source", None) or session()

    async def main():
        app = Stepper(source, **options)
        async with app.run_test(size=size) as pilot:
            await script(app, pilot)

    asyncio.run(main())


async def type_in(app, pilot, key, text):
    await pilot.press(key)
    assert app.prompt is not None
    assert f"{app.prompt.what}? " in seen(app)
    await pilot.press(*[TYPED.get(letter, letter) for letter in text], "enter")
    await app.workers.wait_for_complete()
    await pilot.pause()
    assert app.prompt is None


async def until(pilot, holds):
    """Wait for what comes in a moment, or later on a busy machine."""
    for _ in range(9000):
        if holds():
            return
        await pilot.pause(0.02)
    raise AssertionError("it never came")


def seen(app):
    """The letters of the frame on screen."""
    console = Console(width=app.size.width, color_system=None)
    with console.capture() as capture:
        console.print(app.picture())
    return capture.get()


def test_events_and_tiles_forward_and_back():
    async def script(app, pilot):
        replay = app.loaded.replay
        stops = replay.steps.stops.tolist()
        await pilot.press("left")
        assert app.event == 0, "there is nothing before the start"
        await pilot.press("right", "right", "left", "l", "j")
        assert app.event == 1
        await pilot.press("shift+right")
        assert app.event == stops[0]
        await pilot.press("full_stop", "full_stop")
        assert app.event == stops[2]
        await pilot.press("comma", "shift+left")
        assert app.event == stops[0]
        await pilot.press("end", "right", "shift+right")
        assert app.event == len(replay) - 1
        await pilot.press("shift+left")
        assert app.event == stops[-1]
        await pilot.press("home")
        assert app.event == 0

    drive(script)


def test_back_shows_exactly_what_was_shown():
    async def script(app, pilot):
        frames = []
        for _ in range(40):
            frames.append(seen(app))
            await pilot.press("right")
        for frame in reversed(frames):
            await pilot.press("left")
            assert seen(app) == frame

    drive(script, event=50)


def test_jumping_to_a_tile_and_what_is_wrong_with_one():
    async def script(app, pilot):
        replay = app.loaded.replay
        await type_in(app, pilot, "g", "2,1")
        assert app.event == replay.find_tile(2, 1)
        await type_in(app, pilot, "g", "event 9")
        assert app.event == 9
        for text, message in (("7,0", "query tile must be in 0..2, got 7"), ("0,6", "skipped")):
            await type_in(app, pilot, "g", text)
            assert message in app.status
            assert message in seen(app)
            assert app.event == 9, "a mistake moves nothing"
        await pilot.press("right")
        assert app.status == ""
        await pilot.press("g", "5", "escape")
        assert app.prompt is None
        await pilot.press("right")
        assert app.event == 11

    drive(script)


def test_a_prompt_says_all_that_it_takes():
    async def script(app, pilot):
        for key in "gbrhpc":
            await pilot.press(key)
            lines = seen(app).splitlines()
            assert len(lines) == 24
            text = " ".join(" ".join(lines).split())
            assert app.prompt.question in text, key
            await pilot.press("escape")
        assert all(name in app._question("program") for name in program_names())

    drive(script)


def test_typing_in_the_prompt():
    async def script(app, pilot):
        await pilot.press("g", "q", "n", "backspace", "left", "question_mark")
        assert app.prompt.text == "q?", "keys are letters while the prompt is open"
        assert "go: q?_" in seen(app)
        await pilot.press("ctrl+u", "2", "comma")
        app.post_message(events.Paste("1\nmore"))
        await pilot.press("enter", "right")
        assert app.event == app.loaded.replay.find_tile(2, 1) + 1

    drive(script)


def test_a_burst_of_keys_is_taken_in_order():
    async def script(app, pilot):
        replay = app.loaded.replay
        for key, letter in [("g", "g"), ("2", "2"), ("comma", ","), ("1", "1"), ("enter", "\r")]:
            app.post_message(events.Key(key, letter))
        for key in ("right", "full_stop", "left"):
            app.post_message(events.Key(key, None))
        await pilot.pause()
        await pilot.pause()
        assert app.event == replay.next_stop(replay.find_tile(2, 1) + 1) - 1

    drive(script)


def test_breakpoints_stop_playing_and_can_be_walked():
    async def script(app, pilot):
        replay = app.loaded.replay
        await pilot.press("n")
        assert "no breakpoint is set" in app.status
        await type_in(app, pilot, "b", "row 20")
        await type_in(app, pilot, "b", "hbm 700")
        hits = sorted({*max_changes(replay, 20).tolist(), replay.first_beyond(700)})
        await pilot.press("n")
        assert app.event == hits[0]
        await pilot.press("n")
        assert app.event == hits[1]
        await pilot.press("N")
        assert app.event == hits[0]
        await pilot.press("home")
        app.speed = 9
        await pilot.press("space")
        await until(pilot, lambda: not app.playing)
        assert app.event == hits[0]
        assert "stopped at a breakpoint" in app.status
        await type_in(app, pilot, "b", "nonsense")
        assert "breakpoint must look like" in app.status
        await type_in(app, pilot, "b", "row 99")
        assert "row must be in 0..36" in app.status
        assert len(app.conditions) == 2
        await type_in(app, pilot, "b", "")
        assert app.conditions == []

    drive(script)


def test_playing_pausing_and_speed():
    async def script(app, pilot):
        await pilot.press("minus", "minus", "minus", "minus")
        assert app.speed == 0
        await pilot.press("plus")
        assert "2 events/s" in app.status
        app.speed = 5
        await pilot.press("space")
        assert app.playing
        assert "playing, 50 events/s" in seen(app)
        await until(pilot, lambda: app.event > 0)
        await pilot.press("space")
        at = app.event
        assert at > 0
        assert not app.playing
        await pilot.pause(0.15)
        assert app.event == at, "paused is paused"
        app.speed = 9
        await pilot.press("end", "space")
        await until(pilot, lambda: not app.playing)
        assert app.event == len(app.loaded.replay) - 1, "from the end it plays from the start"

    drive(script)


def test_rows_are_followed_picked_and_named_by_token():
    async def script(app, pilot):
        await type_in(app, pilot, "g", "1,2")
        rises = app.loaded.replay.rises(0, 1)
        first = 16 + int(rises.argmax())
        assert rises.max() > 1
        assert f"row {first} 'w{first}'" in seen(app)
        await pilot.press("down", "down", "up")
        assert f"row {first + 1} 'w{first + 1}'" in seen(app)
        await type_in(app, pilot, "r", "3")
        assert "row 3 'w3', done" in seen(app)
        await type_in(app, pilot, "r", "37")
        assert "row must be in 0..36, got 37" in app.status
        await type_in(app, pilot, "r", "x")
        assert "row must be a whole number, got 'x'" in app.status
        await type_in(app, pilot, "r", "")
        assert f"row {first} 'w{first}'" in seen(app)

    drive(script)


def test_another_program_direction_and_head_at_the_same_tile():
    async def script(app, pilot):
        await type_in(app, pilot, "g", "1,2")
        await type_in(app, pilot, "p", "flash1")
        assert app.loaded.replay.meta["program"] == "flash1"
        assert app.event == app.loaded.replay.find_tile(1, 2)
        await pilot.press("d")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert app.loaded.replay.meta["direction"] == "backward"
        await type_in(app, pilot, "h", "1")
        assert "head must" in app.status
        assert "got 1" in app.status
        await type_in(app, pilot, "p", "flash9")
        assert "program must be one of" in app.status
        assert app.key == ("flash1", "backward", 0)

    drive(script)


def test_two_runs_side_by_side_stay_at_one_tile():
    async def script(app, pilot):
        await type_in(app, pilot, "c", "flash1")
        assert app.other is not None
        for _ in range(30):
            await pilot.press("right")
            here = app.loaded.replay.steps.at(app.event)
            if here.m_block < 0 or here.n_block < 0:
                continue
            other = app.other_moment(app.moment())
            assert (other.step.m_block, other.step.n_block) == (here.m_block, here.n_block)
            assert other.row.row == app.moment().row.row
        await type_in(app, pilot, "g", "1,2")
        assert "both runs have the same output so far" in seen(app)
        await type_in(app, pilot, "c", "nothing")
        assert "program must be one of" in app.status
        await type_in(app, pilot, "c", "")
        assert app.other is None

    drive(script)


def test_the_bug_shows_beside_the_good_run():
    async def script(app, pilot):
        row = 30
        await type_in(app, pilot, "r", str(row))
        await type_in(app, pilot, "g", "1,5")
        assert f"row {row}: OUTPUTS DIFFER" in seen(app)

    drive(script, compare_with="flash2_without_rescale")


def test_resizing_fits_the_frame_or_says_what_is_missing():
    async def script(app, pilot):
        for width, height in ((120, 40), (80, 24), (50, 22), (200, 60)):
            await pilot.resize_terminal(width, height)
            await pilot.pause()
            assert len(seen(app).splitlines()) == height
        await pilot.resize_terminal(40, 10)
        await pilot.pause()
        assert seen(app).strip() == "terminal needs 40x20, got 40x10"
        await pilot.press("right")
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert "event 1/" in seen(app)

    drive(script)


def test_help_names_every_panel_and_key():
    async def script(app, pilot):
        await pilot.press("question_mark")
        assert isinstance(app.screen, HelpScreen)
        await pilot.press("escape")
        assert not isinstance(app.screen, HelpScreen)
        await pilot.press("t", "z", "z")
        assert "zoom" in app.status
        assert app.view.tensors
        await pilot.press("q")
        assert not app.is_running

    drive(script)
    named = " ".join(keys for keys, _ in KEYS)
    for binding in (*Stepper.BINDINGS, *Player.BINDINGS, *Stage.BINDINGS):
        assert isinstance(binding, Binding)
        key = binding.key.split(",")[0]
        key = {"question_mark": "?", "space": "space", "plus": "+", "minus": "-"}.get(key, key)
        assert key.removeprefix("shift+") in named, key


def test_a_saved_run_replays_and_offers_nothing_else():
    async def script(app, pilot):
        await type_in(app, pilot, "g", "1,2")
        assert "row_sum" in seen(app)
        await type_in(app, pilot, "p", "flash1")
        assert "a replayed log holds flash2 forward of head 0 alone" in app.status
        assert app.loaded.replay.meta["program"] == "flash2"

    drive(script, source=Saved(log_of("flash2", "forward")))


def test_ascii_terminals_get_ascii_alone():
    async def script(app, pilot):
        await pilot.press("shift+right")
        assert seen(app).isascii()
        await pilot.press("g")
        assert seen(app).isascii()

    drive(script, glyphs=ASCII)


def test_starting_with_a_breakpoint():
    async def script(app, pilot):
        await pilot.press("n")
        assert app.event == app.loaded.replay.find_tile(1, 1)

    drive(script, conditions=[Breakpoint("tile", (1, 1))])


def test_unknown_programs_are_refused_before_anything_starts():
    with pytest.raises(ValueError, match="program must be one of"):
        Stepper(session(), "flash9")
