import math
import re

import numpy as np
import pytest
from rich.cells import cell_len
from viewer_runs import PROBLEMS, RUNS, arrays, moment_of, replay_of

from simulator.viewer.align import aligned_event, difference
from simulator.viewer.breakpoints import Breakpoint, next_hit, parse, place, previous_hit
from simulator.viewer.glyphs import ASCII, UNICODE
from simulator.viewer.moment import Moment, View
from simulator.viewer.row_panel import row_section
from simulator.viewer.rows import followed_row, max_changes, row_at
from simulator.viewer.sections import plain
from simulator.viewer.session import Loaded, Session

FLASH = [run for run in RUNS if run[0] != "tiled"]


def softmax_state(name, row, keys):
    """(row_max, row_sum, sum of weighted V) of a row over some keys, in float64."""
    problem, q, k, v, _ = arrays(name)
    scores = problem.softmax_scale * q[0, row, 0] @ k[0, keys, 0].T
    visible = np.ones(len(keys), bool)
    if problem.visibility is not None:
        mask = problem.visibility
        visible = np.broadcast_to(
            mask.keep(0, 0, np.array([[row]]), keys[None], mask.aux), (1, len(keys))
        )[0]
    scores = np.where(visible, scores, -np.inf)
    top = scores.max(initial=-np.inf)
    weights = np.exp(scores - (0 if top == -np.inf else top))
    return top, weights.sum(), weights @ v[0, keys, 0]


def tiles_met(replay, event, m_block, kernel):
    """Key tiles that a query tile has met by an event, ascending, from the events alone."""
    columns = replay.columns
    here = (columns["kernel"][: event + 1] == kernel) & (columns["m_block"][: event + 1] == m_block)
    return sorted(set(columns["n_block"][: event + 1][here].tolist()) - {-1})


@pytest.mark.parametrize("name", [name for name in PROBLEMS if name != "full"])
@pytest.mark.parametrize("program", ["flash1", "flash2"])
def test_forward_rows_equal_a_softmax_over_the_keys_met_so_far(program, name):
    replay = replay_of(program, "forward", name)
    problem = arrays(name)[0]
    seen = 0
    for event in range(0, len(replay), 3):
        for row in (0, 7, 17, problem.seqlen_q - 1):
            state = row_at(replay, event, row)
            if state.status == "waiting":
                continue
            tiles = tiles_met(replay, event, state.m_block, replay.steps.at(event).kernel)
            assert state.n_block == tiles[-1]
            for values, until in ((state.before, tiles[:-1]), (state.after, tiles)):
                keys = np.concatenate(
                    [np.zeros(0, np.int64)]
                    + [np.arange(8 * n, min(8 * n + 8, problem.seqlen_k)) for n in until]
                )
                top, total, weighted = softmax_state(name, row, keys)
                assert values["row_max"] == pytest.approx(top, rel=1e-5)
                assert values["row_sum"] == pytest.approx(total, rel=1e-4)
                if program == "flash1" and total:
                    weighted = weighted / total
                np.testing.assert_allclose(values["O"], weighted[:4], rtol=1e-3, atol=1e-4)
                seen += 1
    assert seen > 50


@pytest.mark.parametrize("program", ["flash1", "flash2", "flash2_two_kernel"])
def test_backward_rows_equal_the_gradients(program):
    replay = replay_of(program, "backward")
    problem, *_ = arrays("causal")
    q, k, v, do = (tensor[0, :, 0] for tensor in arrays("causal")[1:])
    mask = problem.visibility
    assert mask is not None
    rows, keys = np.arange(problem.seqlen_q)[:, None], np.arange(problem.seqlen_k)[None]
    scores = np.where(
        mask.keep(0, 0, rows, keys, mask.aux), problem.softmax_scale * q @ k.T, -np.inf
    )
    lse = np.log(np.exp(scores).sum(1))
    weights = np.exp(scores - lse[:, None])
    d_p = do @ v.T
    delta = (weights * d_p).sum(1)
    d_s = problem.softmax_scale * weights * (d_p - delta[:, None])
    seen = 0
    for event in range(0, len(replay), 3):
        for row in (0, 17, 36):
            state = row_at(replay, event, row)
            if state.status == "waiting":
                continue
            keys = slice(8 * state.n_block, min(8 * state.n_block + 4, problem.seqlen_k))
            assert state.after["lse"] == pytest.approx(lse[row], rel=1e-4)
            assert state.after["delta"] == pytest.approx(delta[row], rel=1e-3, abs=1e-5)
            np.testing.assert_allclose(state.after["P"], weights[row, keys], rtol=1e-4)
            np.testing.assert_allclose(state.after["dS"], d_s[row, keys], rtol=1e-3, atol=1e-5)
            for column in range(len(state.after["P"])):
                found = state.d_p(column, problem.softmax_scale)
                if found is None:
                    assert weights[row, keys][column] == 0
                else:
                    assert found == pytest.approx(d_p[row, keys][column], rel=1e-3, abs=1e-4)
            seen += 1
    assert seen > 20


NUMBER = r"\(?(-?(?:inf|[\d.]+(?:e[-+]\d+)?))\)?"


def significant(text):
    """Significant digits of a printed number."""
    return len(re.sub(r"e.*|[-.]", "", text).lstrip("0")) if "inf" not in text else 0


def half_units(*texts):
    """Half a unit in the last place of each number of a line: what rounding may have cost it.

    All numbers of a line are printed with as many significant digits, trailing zeros left out.
    """
    digits = max(map(significant, texts))
    values = [0.0 if "inf" in text else abs(float(text)) for text in texts]
    return [0.5 * 10.0 ** (math.floor(math.log10(v)) - digits + 1) if v else 0.0 for v in values]


def check_sum(c, x, s, d):
    """The printed d equals the printed c·x + s, up to the rounding of what is printed."""
    units = half_units(c, x, s, d)
    slack = units[2] + units[3] + float(c) * units[1] + float(x) * units[0] + units[0] * units[1]
    assert abs(float(c) * float(x) + float(s) - float(d)) <= slack * (1 + 1e-9)


def check_factor(a, b, exponent, factor):
    """The printed factor is e to the printed a - b."""
    units = half_units(a, b, exponent, factor)
    if a == "-inf":
        assert float(factor) == 0
        return
    assert abs(float(a) - float(b) - float(exponent)) <= sum(units[:3]) * (1 + 1e-9)
    expected = math.exp(float(exponent))
    slack = units[3] + expected * math.expm1(units[2])
    assert abs(float(factor) - expected) <= slack * (1 + 1e-9)


def check_product(scale, weight, d_p, delta, result):
    """The printed dS is the printed scale·P·(dP - delta)."""
    texts = scale, weight, d_p, delta, result
    units, values = half_units(*texts), [float(text) for text in texts]
    inner, factor = values[2] - values[3], values[0] * values[1]
    loose = units[0] * values[1] + units[1] * values[0] + units[0] * units[1]
    slack = factor * (units[2] + units[3]) + loose * (abs(inner) + units[2] + units[3]) + units[4]
    assert abs(factor * inner - values[4]) <= slack * (1 + 1e-9)


@pytest.mark.parametrize("width", [36, 46, 70, 120])
@pytest.mark.parametrize("run", FLASH, ids="-".join)
def test_printed_arithmetic_adds_up_and_fits(run, width):
    replay = replay_of(*run)
    sums = products = 0
    for event in range(0, len(replay), 4):
        moment = moment_of(event, *run)
        section = row_section(moment, width, 20, UNICODE)
        text = " ".join(plain(line).strip() for line in section.lines)
        assert "nan" not in text
        change = rf"row_max +{NUMBER} → {NUMBER} +rescale e\^\({NUMBER}\) = {NUMBER}"
        for numbers in re.findall(change, text):
            check_factor(*numbers)
        share = rf"row_sum +{NUMBER} → {NUMBER} = {NUMBER}·{NUMBER} \+ {NUMBER}"
        for c, d, c_again, x, added in re.findall(share, text):
            assert c == c_again
            check_sum(c, x, added, d)
            sums += 1
        gradient = rf"= {NUMBER}·{NUMBER}·\({NUMBER} - {NUMBER}\) = {NUMBER}"
        for numbers in re.findall(gradient, text):
            check_product(*numbers)
            products += 1
    assert (sums if run[1] == "forward" else products) > 5


def test_values_appear_with_the_event_that_computes_them():
    replay = replay_of("flash2", "forward")
    lines = replay.meta["lines"]
    step = replay.steps.of_pair(1, 1)[0]
    known_at = {}
    for event in range(step.start, step.stop):
        for name in row_at(replay, event, 20).known:
            known_at.setdefault(name, lines[replay.line(event)])
    assert known_at == {
        "row_max": "m = max(m, rowmax S),  α = exp(m_old - m)",
        "rescale": "m = max(m, rowmax S),  α = exp(m_old - m)",
        "row_sum": "l = α l + rowsum P",
        "O": "O = O + P V_j",
    }


def test_the_row_followed_is_the_one_that_is_rescaled_most_often():
    replay = replay_of("flash2", "forward")
    for m_block in range(3):
        step = replay.steps.of_pair(m_block, 1)[0]
        rows = range(16 * m_block, min(16 * m_block + 16, 37))
        changes = [len(max_changes(replay, row)) for row in rows]
        assert followed_row(replay, step.stop - 1) == rows[changes.index(max(changes))]
    backward = replay_of("flash2", "backward")
    assert followed_row(backward, backward.find_tile(1, 1)) == 24, "no maximum: the middle row"


@pytest.mark.parametrize("run", FLASH, ids="-".join)
def test_every_landing_knows_all_values(run):
    replay = replay_of(*run)
    for stop in replay.steps.stops.tolist():
        row = row_at(replay, stop, followed_row(replay, stop))
        if row.status == "current":
            assert row.known == row.after.keys()


def test_a_row_that_sees_no_key_stays_at_minus_infinity():
    moment = moment_of(
        len(replay_of("flash2", "forward", "unseen")) - 1, "flash2", "forward", "unseen", row=16
    )
    text = " ".join(plain(line) for line in row_section(moment, 60, 9, UNICODE).lines)
    assert moment.row.status == "done"
    assert "-inf → -inf" in text
    assert "lse     = -inf" in text or "= -inf" in text
    assert "nan" not in text


def test_rows_out_of_range_are_refused():
    for row in (-1, 37):
        with pytest.raises(ValueError, match=rf"row must be in 0\.\.36, got {row}"):
            row_at(replay_of(), 0, row)
        with pytest.raises(ValueError, match=rf"row must be in 0\.\.36, got {row}"):
            max_changes(replay_of(), row)


def traffic(replay, event):
    return replay.total("hbm_read", event) + replay.total("hbm_write", event)


def test_breakpoints_hit_where_their_condition_first_holds():
    replay = replay_of("flash2", "forward")
    total = traffic(replay, len(replay) - 1)
    for elements in (0, 500, total - 1):
        event = next_hit([Breakpoint("hbm", (elements,))], replay, -1)
        assert event is not None
        sums = [
            replay.total("hbm_read", e) + replay.total("hbm_write", e) for e in (event - 1, event)
        ]
        assert event == 0 or sums[0] <= elements
        assert sums[1] > elements
    assert next_hit([Breakpoint("hbm", (total,))], replay, 0) is None
    for row in (0, 20, 36):
        hits, maxima = [], {}
        for event in range(len(replay)):
            state = row_at(replay, event, row)
            known = state.after if "row_max" in state.known else state.before
            value = known.get("row_max", -math.inf)
            if value != maxima.get("last", -math.inf):
                hits.append(event)
            maxima["last"] = value
        assert max_changes(replay, row).tolist() == hits
    tile = Breakpoint("tile", (1, 2))
    hit = next_hit([tile], replay, 0)
    assert hit is not None
    assert hit == replay.find_tile(1, 2)
    assert next_hit([tile], replay, hit) is None
    assert previous_hit([tile], replay, hit) is None
    assert previous_hit([tile, Breakpoint("hbm", (0,))], replay, hit) == 0


def test_places_and_breakpoints_as_typed():
    replay = replay_of()
    assert str(parse(" tile 2, 1 ")) == "tile 2,1"
    assert parse("hbm:40_000").values == (40000,)
    assert place("1 2", replay) == place("tile 1,2", replay) == replay.find_tile(1, 2)
    assert (place("start", replay), place("end", replay)) == (0, len(replay) - 1)
    assert place("event 9", replay) == 9
    assert place("hbm 0", replay) == 0
    for text in ("", "tile 2", "row 1,2", "hbm", "row -1", "tile 1,2,3"):
        with pytest.raises(ValueError, match="breakpoint must look like one of"):
            parse(text)
    for text, message in (
        ("nowhere", "place must look like"),
        ("event 99999", r"event must be in 0\.\."),
        ("9,9", "query tile must be in"),
        ("hbm 99999999", "reaches"),
    ):
        with pytest.raises(ValueError, match=message):
            place(text, replay)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_runs_align_by_tile(direction):
    first, second = replay_of("flash2", direction), replay_of("flash1", direction)
    for event in range(len(first)):
        step = first.steps.at(event)
        there = aligned_event(first, event, second)
        twin = second.steps.at(there)
        if step.m_block >= 0 and step.n_block >= 0:
            assert (twin.m_block, twin.n_block) == (step.m_block, step.n_block)
            assert (event >= step.landing) == (there >= twin.landing)
    steps = first.steps
    with_pairs = set(steps.kernel[steps.is_pair].tolist())
    for event in range(len(first)):
        number = steps.number_at(event)
        if steps.is_pair[number] or steps.kernel[number] not in with_pairs:
            assert aligned_event(first, event, first) == event


def test_flash1_and_flash2_have_the_same_output_at_every_tile():
    first, second = replay_of("flash2", "forward"), replay_of("flash1", "forward")
    for stop in first.steps.stops.tolist():
        left = Moment(first, stop)
        right = Moment(second, aligned_event(first, stop, second), View(row=left.row.row))
        assert "same output" in (difference(left, right) or "")


def test_without_the_rescale_outputs_part_where_the_maximum_changes():
    problem, q, k, v, _ = arrays("causal")
    session = Session(problem, q, k, v, tile_m=16, tile_n=8)
    good = session.run("flash2", "forward", 0).replay
    bad = session.run("flash2_without_rescale", "forward", 0).replay
    row = 30
    changes = [good.steps.at(event).n_block for event in max_changes(good, row)]
    assert len(changes) > 1, "the row's maximum must change for the bug to show"
    for n_block in range(6):
        stop = good.find_tile(1, n_block)
        view = View(row=row)
        text = difference(Moment(good, stop, view), Moment(bad, stop, view)) or ""
        assert ("DIFFER" in text) == (n_block >= changes[1])
    assert Loaded.of(bad.log).costs.equal


def test_titles_and_lines_are_ascii_where_they_must_be():
    moment = moment_of(60, "flash1", "forward")
    section = row_section(moment, 46, 7, ASCII)
    assert all(plain(line).isascii() for line in section.boxed(50, 9, ASCII))
    assert all(cell_len(plain(line)) == 50 for line in section.boxed(50, 9, ASCII))
