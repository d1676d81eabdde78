import io
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console
from viewer_runs import RUNS, arrays, log_of, moment_of, replay_of

from flash_numba.problem import Problem
from simulator.run import simulate
from simulator.viewer.align import aligned_event
from simulator.viewer.costs import costs_of
from simulator.viewer.export import export
from simulator.viewer.frame import TooSmall, frame, hint_line, pair
from simulator.viewer.glyphs import ASCII, UNICODE, for_encoding
from simulator.viewer.moment import Moment, View
from simulator.viewer.panels import HELP, SECTIONS, panel
from simulator.viewer.plain import chosen_events, plain_frame
from simulator.viewer.replay import Replay
from simulator.viewer.rows import followed_row
from simulator.viewer.sections import folded
from simulator.viewer.session import Session

SIZES = [(40, 20), (60, 24), (75, 30), (76, 20), (80, 24), (120, 40), (200, 60)]


def drawn(renderable, width, **options):
    """Lines that a terminal of this width would show."""
    console = Console(
        width=width, file=io.StringIO(), force_terminal=True, legacy_windows=False, **options
    )
    with console.capture() as capture:
        console.print(renderable)
    return capture.get().splitlines()


def stripped(renderable, width):
    """The lines without styles."""
    file = io.StringIO()
    Console(width=width, file=file, color_system=None).print(renderable)
    return file.getvalue().splitlines()


@pytest.mark.parametrize("size", SIZES, ids=lambda size: "x".join(map(str, size)))
@pytest.mark.parametrize("run", RUNS, ids="-".join)
def test_a_frame_fills_exactly_its_cells(run, size):
    width, height = size
    replay = replay_of(*run)
    costs = costs_of(replay)
    for event in {0, 30, len(replay) // 2, *replay.steps.stops[3:6].tolist(), len(replay) - 1}:
        for view in (View(), View(row=36, zoom=2), View(tensors=True)):
            moment = Moment(replay, event, view, costs)
            for glyphs in (UNICODE, ASCII):
                lines = stripped(frame(moment, width, height, glyphs, hint_line(glyphs)), width)
                assert len(lines) == height
                assert max(cell_len(line) for line in lines) <= width
                assert glyphs.unicode or all(line.isascii() for line in lines)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=["80x24", "120x40"])
@pytest.mark.parametrize("run", RUNS, ids="-".join)
def test_nothing_is_cut_off(run, size):
    width, height = size
    replay = replay_of(*run)
    costs = costs_of(replay)
    lines = set()
    for event in range(len(replay)):
        for view in (View(), View(tensors=True)):
            moment = Moment(replay, event, view, costs)
            picture = frame(moment, width, height, UNICODE, hint_line(UNICODE, width))
            lines |= set(picture.plain.split("\n"))
    assert [line for line in lines if "…" in line] == []


@pytest.mark.parametrize("run", RUNS, ids="-".join)
def test_folded_lines_of_the_algorithm_are_whole(run):
    replay = replay_of(*run)
    for kernel in range(len(replay.meta["kernels"])):
        event = replay.columns["kernel"].tolist().index(kernel)
        section = SECTIONS["algorithm"](Moment(replay, event), 26, 60, UNICODE)
        text = " ".join("".join(piece for piece, _ in line) for line in section.lines)
        words = " ".join(text.replace(UNICODE.pointer, "").split())
        numbers = [n for n, owner in enumerate(replay.meta["line_kernels"]) if owner == kernel]
        expected = " ".join(replay.meta["lines"][number] for number in numbers)
        assert words.startswith(" ".join(expected.split()) + " event: ")


@pytest.mark.parametrize("name", ["flash1", "flash2_without_rescale"])
def test_two_runs_side_by_side_tell_the_same(name):
    """At 80x24: names and places whole, and O after the tile, which is what may differ."""
    problem, q, k, v, _ = arrays("causal")
    source = Session(problem, q, k, v, tile_m=16, tile_n=8)
    left, right = (source.run(program, "forward", 0).replay for program in ("flash2", name))
    for event in range(len(left)):
        moments = Moment(left, event), Moment(right, aligned_event(left, event, right))
        text = pair(*moments, 80, 24).plain
        first, _algorithm, *others = text.splitlines()
        assert f"{name} " in first
        assert [line for line in (first, *others) if "…" in line] == []
        if {"O"} <= moments[0].row.known:
            assert re.search(r"│ +→ +-?[\d.]+(e-\d+)? ", text)


def test_the_title_keeps_its_parts_from_frame_to_frame():
    replay = replay_of("flash2", "forward")
    costs = costs_of(replay)
    titles = {
        frame(Moment(replay, event, None, costs), 80, 24).plain.split("  tile ")[0].rstrip()
        for event in range(len(replay))
    }
    assert len(titles) == 1
    assert titles.pop().endswith("causal")


def test_long_lines_break_between_equations_first():
    assert folded("m = max(m, n),  α = exp(m)", 20, UNICODE, 2) == [
        "m = max(m, n),",
        "  α = exp(m)",
    ]
    assert folded("store 0 to O, 0 to l", 12, UNICODE, 2) == ["store 0 to", "  O, 0 to l"]
    assert folded("a  b", 4, UNICODE) == ["a  b"]


def test_tensors_say_how_many_times_they_moved():
    """K and V are read once a query tile, and all else once."""
    replay = replay_of("flash2", "forward", "full", 4, 8)
    lines = stripped(panel("hbm", Moment(replay, len(replay) - 1, View(tensors=True))), 60)
    rows = {words[1]: words[2:-1] for words in map(str.split, lines[1:-1]) if len(words) > 2}
    assert rows["so"] == ["far", "read", "times", "written", "times"]
    assert rows["Q"] == ["64", "1.0", "0"]
    assert rows["K"] == rows["V"] == ["384", "4.0", "0"]
    assert rows["O"] == ["0", "64", "1.0"]
    assert rows["LSE"] == ["0", "16", "1.0"]


@pytest.mark.parametrize("size", [(80, 20), (81, 24), (120, 40), (200, 60)])
def test_two_runs_fill_exactly_their_cells(size):
    width, height = size
    left, right = moment_of(60), moment_of(90, "flash1", "forward")
    lines = stripped(pair(left, right, width, height, UNICODE, "status"), width)
    assert len(lines) == height
    assert max(cell_len(line) for line in lines) <= width
    assert lines[-1].strip() == "status"
    assert "flash1" in lines[0]
    assert "flash2" in lines[0]


@pytest.mark.parametrize(("size", "runs"), [((40, 10), 1), ((39, 24), 1), ((79, 24), 2)])
def test_a_terminal_that_is_too_small_is_told_in_one_line(size, runs):
    moments = moment_of(0), moment_of(0) if runs == 2 else None
    with pytest.raises(TooSmall) as error:
        pair(*moments, *size)
    least = "40x20" if runs == 1 else "80x20"
    expected = f"terminal needs {least}, got {size[0]}x{size[1]}"
    assert str(error.value) == expected


def test_the_frame_says_where_what_and_how_much():
    replay = replay_of("flash2", "forward")
    event = replay.find_tile(1, 3)
    text = "\n".join(stripped(frame(moment_of(event), 80, 24), 80))
    assert f"event {event}/{len(replay) - 1}" in text
    assert "flash2 forward  N 37 M 50  d 6  tiles 16x8  causal" in text
    assert "▸ O = O + P V_j" in text
    assert "[▣]" in text or "[◈]" in text
    assert re.search(r"K +8x6", text)
    assert "registers" in text
    assert f"row {followed_row(replay, event)}, key tile 3" in text
    assert f"{replay.total('hbm_read', event):,}" in text
    assert "equal ✓" in text
    assert re.search(r"in all [\d,]+, 0\.\d{3}x standard's [\d,]+", text)


@pytest.mark.parametrize("run", RUNS, ids="-".join)
@pytest.mark.parametrize("name", ["causal", "window", "full", "unseen"])
def test_the_closed_form_is_shown_equal(run, name):
    costs = costs_of(replay_of(*run, name))
    assert costs.equal
    assert costs.baseline > 0


def test_a_count_that_differs_is_shown_as_different(tmp_path):
    log_of("flash2", "forward").save(tmp_path / "log.npz")
    log = type(log_of("flash2", "forward")).load(tmp_path / "log.npz")
    log.columns["hbm_read"][0] += 1
    moment = Moment(Replay(log), 50)
    assert not moment.costs.equal
    assert "DIFFERS ✗" in "\n".join(stripped(frame(moment, 80, 24), 80))


def test_a_gradient_through_lse_has_its_closed_form():
    problem = Problem(20, 20, 4)
    result = simulate("flash2", problem, direction="backward", dlse=True, record=True)
    assert result.log is not None
    assert costs_of(Replay(result.log)).equal


def test_no_colour_is_used_where_none_is_wanted():
    moment = moment_of(60)
    with_colour = "".join(drawn(frame(moment, 80, 24), 80, color_system="truecolor", _environ={}))
    without = "".join(
        drawn(frame(moment, 80, 24), 80, color_system="truecolor", _environ={"NO_COLOR": "1"})
    )
    assert "\x1b[32m" in with_colour
    codes = {part.split("m")[0] for part in without.split("\x1b[")[1:]}
    attributes = {code for several in codes for code in several.split(";")}
    assert attributes <= {"0", "1", "2", "3", "7", ""}, "only bold, dim, italic and reverse"


def test_no_information_by_colour_alone():
    """States of the grid differ in their marks, so do loaded tiles in their words."""
    for glyphs in (UNICODE, ASCII):
        marks = [
            *(glyphs.done, glyphs.done_partial, glyphs.todo, glyphs.todo_partial),
            *(glyphs.now, glyphs.now_partial, glyphs.mixed, glyphs.skipped),
        ]
        assert len(set(marks)) == len(marks)
        assert all(cell_len(mark) == 1 for mark in marks)
    assert "loaded now" in "\n".join(stripped(panel("sram", moment_of(0)), 60))


def test_all_states_of_the_grid_show_and_the_legend_names_them():
    replay = replay_of("flash2", "forward")
    lines = stripped(panel("grid", Moment(replay, replay.find_tile(1, 2)), 30, 10), 30)
    for mark in ("■", "◆", "□", "◇", "·"):
        assert any(mark in line for line in lines[2:5]), mark
        assert any(mark in line for line in lines if "done" in line or "cut" in line), mark


def test_marks_of_ascii_stand_apart_from_words():
    replay = replay_of("flash2", "forward")
    section = SECTIONS["grid"](Moment(replay, replay.find_tile(1, 2)), 26, 10, ASCII)
    first, second = ("".join(piece for piece, _ in line) for line in section.lines[-2:])
    assert first == "# done @ now o todo . skip"
    assert second == "% & v same, cut by mask"


def test_a_large_grid_shrinks_then_scrolls_to_the_tile_at_hand():
    problem = Problem(6400, 6400, 4, causal=True)
    result = simulate("flash2", problem, tile_m=64, tile_n=64, record=True)
    assert result.log is not None
    replay = Replay(result.log)
    costs = costs_of(replay)
    for event in (0, replay.find_tile(50, 20), replay.find_tile(99, 99)):
        for zoom in (None, 1, 2, 64):
            moment = Moment(replay, event, View(zoom=zoom), costs)
            section = SECTIONS["grid"](moment, 26, 9, UNICODE)
            lines = ["".join(piece for piece, _ in line) for line in section.lines]
            (here,) = [line for line in lines if line.startswith("▸")]
            assert ("[▣]" in here or "[◈]" in here) == (event > 0)
            lines = stripped(frame(moment, 80, 24), 80)
            assert max(map(cell_len, lines)) <= 80


def test_glyphs_follow_the_encoding():
    assert for_encoding("utf-8") is UNICODE
    for encoding in ("ascii", "latin-1", "cp1252", None, "no such encoding"):
        assert for_encoding(encoding) is ASCII
    assert ASCII.text("α K_jᵀ m̃ → ✓") == "alpha K_j^T m~ -> (ok)"
    assert ASCII.text("名") == "?"


def test_every_panel_has_one_sentence_of_help():
    assert HELP.keys() == SECTIONS.keys()
    for sentence in HELP.values():
        assert sentence.endswith(".")
        assert sentence.count(". ") == 0
    with pytest.raises(ValueError, match="panel must be one of grid, sram"):
        panel("nothing", moment_of(0))


def test_panels_show_in_notebooks():
    bundle = panel("row", moment_of(replay_of().find_tile(1, 2)))._repr_mimebundle_((), ())
    assert "row_max" in bundle["text/plain"]
    assert "<pre" in bundle["text/html"]
    assert "SRAM" in frame(moment_of(60), 80, 24)._repr_mimebundle_((), ())["text/plain"]


@pytest.mark.parametrize("width", [40, 80, 133])
@pytest.mark.parametrize("run", RUNS, ids="-".join)
def test_plain_frames_are_plain(run, width):
    replay = replay_of(*run)
    for event in chosen_events(replay, 4):
        moment = Moment(replay, event)
        for glyphs in (UNICODE, ASCII):
            text = plain_frame(moment, width, glyphs)
            assert max(cell_len(line) for line in text.splitlines()) <= width
            assert not set(text) & set("│┌┐└┘─\x1b")
            assert glyphs.unicode or text.isascii()
    # Causal, 37 queries of 50 keys in tiles of 16x8: 4 key tiles in the first row, 6 and 7 after.
    replay = replay_of()
    event = replay.find_tile(1, 4)
    sentence = plain_frame(moment_of(event), 80).splitlines()[1]
    where = f"tile {4 + 5}/{4 + 6 + 7} event {event}/{len(replay) - 1}"
    assert sentence == f"{where}, at query tile 1, key tile 4 (cut by the mask)"


def test_plain_frames_are_spread_from_the_start_to_the_end():
    replay = replay_of()
    stops = replay.steps.stops.tolist()
    assert chosen_events(replay, 1) == [stops[0]]
    assert chosen_events(replay, 3) == [stops[0], stops[len(stops) // 2], len(replay) - 1]
    assert len(chosen_events(replay, 6)) == 6
    assert chosen_events(replay, 2, 50)[0] == 50
    stops.append(len(replay) - 1)
    for frames in (len(replay) + 1, 10**12):
        assert chosen_events(replay, frames) == sorted({*stops})
    with pytest.raises(ValueError, match="frames must be a whole number >= 1, got 0"):
        chosen_events(replay, 0)


def test_exports_are_complete_files(tmp_path):
    picture = frame(moment_of(replay_of().find_tile(1, 2)), 80, 24)
    export(picture, tmp_path / "frame.svg", 80)
    root = ElementTree.parse(tmp_path / "frame.svg").getroot()
    assert root.tag.endswith("svg")
    text = "".join(root.itertext()).replace("\xa0", " ")
    assert "row_sum" in text
    assert "▣" in text
    export(picture, tmp_path / "frame.html", 80)
    html = (tmp_path / "frame.html").read_text(encoding="utf-8")
    assert html.startswith("<!DOCTYPE html>")
    assert html.rstrip().endswith("</html>")
    assert "row_sum" in html
    assert sorted(p.name for p in tmp_path.iterdir()) == ["frame.html", "frame.svg"]


def test_an_export_that_fails_leaves_nothing(tmp_path, monkeypatch):
    target = tmp_path / "frame.svg"
    target.write_text("before")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        export(frame(moment_of(60), 80, 24), target, 80)
    assert target.read_text() == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["frame.svg"]
    for path, message in ((tmp_path / "a.png", "must end in"), (tmp_path / "b/c.svg", "folder")):
        with pytest.raises(ValueError, match=message):
            export("x", path, 80)


def test_a_run_without_numbers_says_so():
    result = simulate("flash2", Problem(20, 20, 4), record=True)
    assert result.log is not None
    moment = Moment(Replay(result.log), 12)
    assert "no numbers were kept" in "\n".join(stripped(frame(moment, 80, 24), 80))


def test_programs_with_score_changes_show_no_arithmetic_that_would_be_wrong():
    from flash_numba.masks import softcap

    problem = Problem(20, 20, 4, score_mods=(softcap(5.0),))
    q, k, v, do = np.random.default_rng(0).standard_normal((4, 1, 20, 1, 4))
    result = simulate("flash2", problem, q, k, v, do, direction="backward", record=True)
    assert result.log is not None
    replay = Replay(result.log)
    text = "\n".join(stripped(frame(Moment(replay, len(replay) - 6), 80, 24), 80))
    assert "dS" in text
    assert "scale·P" not in text.split("row ")[1].split("HBM")[0]
