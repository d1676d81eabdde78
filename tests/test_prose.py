"""What the texts say: links lead somewhere, numbers are computed, colours can be told apart."""

import json
import re
import tokenize
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
TUTORIALS = ROOT / "tutorials"
NOTEBOOKS = sorted(TUTORIALS.glob("*.ipynb"))
TEXTS = [
    path
    for path in sorted(ROOT.glob("**/*.md"))
    if not {".venv", "node_modules", ".pytest_cache"} & set(path.relative_to(ROOT).parts)
]


def cells(path: Path, kind: str) -> list[str]:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == kind]


def prose(path: Path) -> str:
    """Text without blocks of code."""
    if path.suffix == ".md":
        return re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return "\n\n".join(cells(path, "markdown"))


def anchors(path: Path) -> set[str]:
    """What GitHub and Jupyter make of titles."""
    titles = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


HOSTS = {
    "arxiv.org": r"https://arxiv\.org/abs/\d{4}\.\d{4,5}",
    "doi.org": r"https://doi\.org/10\.\d{4,}/[\w./-]+\w",
    "github.com": r"https://github\.com/[\w-]+/[\w.-]+",
    "docs.nvidia.com": r"https://docs\.nvidia\.com/[\w/-]+/",
    "siboehm.com": r"https://siboehm\.com/articles/[\w/-]+",
    "keepachangelog.com": r"https://keepachangelog\.com/[\w/.]+/",
    "semver.org": r"https://semver\.org/spec/v[\d.]+\.html",
}
"""Where links may lead, and how an address there looks; none is asked for."""


@pytest.mark.parametrize("path", TEXTS + NOTEBOOKS, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    text = re.sub(r"`[^`\n]*`", "", prose(path))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith("https://"):
            assert re.fullmatch(HOSTS.get(link.split("/")[2], "(?!)"), link), link
            continue
        assert not link.startswith(("http:", "/")), link
        place, _, anchor = link.partition("#")
        target = (path.parent / place).resolve() if place else path
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def test_a_broken_link_would_be_found(tmp_path):
    for text in (
        "[a](nowhere.md)",
        "[a](#nothing)",
        "[a](http://arxiv.org/abs/2205.14135)",
        "[a](https://example.org/)",
        "[a](https://arxiv.org/abs/2205)",
        "[a](https://arxiv.org.example.org/abs/2205.14135)",
    ):
        (tmp_path / "a.md").write_text(f"# A title\n\n{text} [b](#a-title)\n", encoding="utf-8")
        with pytest.raises(AssertionError):
            test_links_lead_somewhere(tmp_path / "a.md")
    text = "[a](https://arxiv.org/abs/2205.14135) [b](https://doi.org/10.1145/1498765.1498785)"
    (tmp_path / "a.md").write_text(text, encoding="utf-8")
    test_links_lead_somewhere(tmp_path / "a.md")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_further_reading_can_be_reached(path):
    """A paper that arXiv has is linked wherever further reading names it."""
    last = cells(path, "markdown")[-1]
    linked = re.sub(r"\[[^\]]*\]\(https://[^)]*\)", "", last)
    for one in (
        r"Dao et al\. 2022",
        "Dao 2023",
        r"\*FlashAttention",
        "PTX ISA",
        r"\*GQA",
        "nanoGPT",
    ):
        assert not re.search(one, linked), one


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_pictures_in_texts_have_alternatives(path):
    for alternative, _ in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", prose(path)):
        assert len(alternative) > 60, alternative


NUMBER = re.compile(r"(?<![\w.,])\d+(?:[.,]\d+)*(?!\w)")
"""A number by itself: not part of a name (FlashAttention-2 is one), nor a factor in a formula."""

NAMES = (
    r"\$\$.*?\$\$",
    r"\$[^$]*\$",
    r"`[^`]*`",
    r"\]\([^)]*\)",
    r"^# \d+ ·",  # the notebook's own number
    r"^\d+\. ",  # of a list
    r"[Nn]otebooks? \d+(?:(?:,| and| to) \d+)*",
    r"FlashAttention-\d",
    r"## Further reading.*",  # years, pages and chapters
)
"""Where a number is a name, or stands in a formula."""

AMOUNTS = r"\b(hundred|thousand|million|billion|dozen)s?\b"
"""Results in words. ("Scores in the hundreds" says how large scores may be.)"""


def unexplained(path: Path) -> list[str]:
    """Numbers in a notebook's prose that none of its cells defines, takes or prints."""
    text = prose(path)
    for pattern in NAMES:
        text = re.sub(pattern, " ", text, flags=re.MULTILINE | re.DOTALL)
    known = {"0", "1"}
    for source in cells(path, "code"):
        known |= {
            one.replace("_", "") for one in re.findall(r"(?<![\w.])\d[\d_]*(?:\.\d+)?", source)
        }
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        for output in cell.get("outputs", ()):
            shown = output.get("text", output.get("data", {}).get("text/plain", ""))
            known |= {one.replace(",", "") for one in NUMBER.findall("".join(shown))}
    found = [one for one in NUMBER.findall(text) if one.replace(",", "") not in known]
    words = re.sub(r"in the hundreds", "", text)
    return found + [match.group() for match in re.finditer(AMOUNTS, words)]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_number_is_typed_by_hand(path):
    """A number of the prose is one that a cell defines, or one that a cell prints.

    What is printed is what a run prints (`test_notebooks.test_runs_as_shown`): a number that is
    no longer true is no longer there.
    """
    assert unexplained(path) == []


def test_a_typed_number_would_be_found(tmp_path):
    def notebook(text):
        made = {
            "cells": [
                {"cell_type": "markdown", "source": text},
                {
                    "cell_type": "code",
                    "source": "N = 4_096\nprint(N / 3)",
                    "outputs": [{"output_type": "stream", "text": "1365.3\n"}],
                },
            ]
        }
        path = tmp_path / "made.ipynb"
        path.write_text(json.dumps(made), encoding="utf-8")
        return unexplained(path)

    assert notebook("N = 4,096 gives 1365.3 with 4N² of notebook 12 and FlashAttention-2") == []
    assert notebook("it is 3.7 times as fast") == ["3.7"]
    assert notebook("30 % less, a hundred times") == ["30", "hundred"]


DEFICIENCIES = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
               [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
               [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
               [0.004733, 0.691367, 0.303900]],
}  # fmt: skip
"""How those who lack one kind of cone see linear RGB (Machado, Oliveira, Fernandes 2009, 1.0)."""

LIGHTNESS_OF_JND = 2.3
"""Difference in CIELAB that half of all people just notice (Mahy, van Eycken, Oosterlinck 1994)."""


def linear(colour: str) -> np.ndarray:
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIELAB under D65 of linear sRGB."""
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = np.array(to_xyz) @ np.clip(rgb, 0, 1) / [0.9505, 1.0, 1.089]
    fx, fy, fz = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return np.array([116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)])


def apart(one: str, other: str, matrix: list[list[float]]) -> float:
    seen = (lab(np.array(matrix) @ linear(colour)) for colour in (one, other))
    return float(np.linalg.norm(next(seen) - next(seen)))


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
def test_colours_are_told_apart(deficiency):
    """Five times what is just noticed, for any two colours that tensors or programs have."""
    from simulator.course import style

    colours = {name: getattr(style, name) for name in PALETTE}
    for (first, one), (second, other) in combinations(colours.items(), 2):
        seen = apart(one, other, DEFICIENCIES[deficiency])
        assert seen > 5 * LIGHTNESS_OF_JND, f"{first} and {second} are {seen:.0f} apart"


@pytest.mark.parametrize("picture", ["traffic_by_operation", "kernels_apart_and_fused"])
def test_letters_on_bars_can_be_read(picture):
    """With the 4.5 : 1 that WCAG 2 asks of small letters."""
    pytest.importorskip("matplotlib")
    from matplotlib.colors import to_hex

    from simulator.course import hierarchy

    def luminance(colour):
        return float(np.dot((0.2126, 0.7152, 0.0722), linear(to_hex(colour))))

    figure, _ = getattr(hierarchy, picture)(128, 32)
    ax = figure.axes[0]
    for text in ax.texts:
        x, y = text.get_position()
        y = ax.yaxis.convert_units(y)
        (bar,) = (p for p in ax.patches if p.get_bbox().contains(x, y))
        dark, light = sorted(luminance(one) for one in (text.get_color(), bar.get_facecolor()))
        assert (light + 0.05) / (dark + 0.05) >= 4.5, text.get_text()
    assert len(ax.texts) == len(ax.patches) > 1


def test_red_and_green_would_not_pass():
    assert apart("#d62728", "#2ca02c", DEFICIENCIES["deutan"]) < 5 * LIGHTNESS_OF_JND


PALETTE = ("BLUE", "ORANGE", "GREEN", "PINK", "SKY", "RED", "YELLOW", "GREY", "BLACK")


@pytest.mark.parametrize(
    "path",
    [*sorted((ROOT / "simulator" / "course").glob("*.py")), *TUTORIALS.glob("sources/*.py")],
    ids=lambda path: path.stem,
)
def test_pictures_use_no_other_colours(path):
    """But black and white, and cividis, a scale made for colour-blind readers."""
    with open(path, "rb") as file:
        strings = [
            token.string
            for token in tokenize.tokenize(file.readline)
            if token.type == tokenize.STRING
        ]
    code = path.read_text(encoding="utf-8")
    if path.stem != "style":
        assert not re.search(r"#[0-9A-Fa-f]{6}\b", code)
    named = (
        r"^[\"'](red|green|blue|orange|purple|brown|pink|grey|gray|cyan|magenta|C\d|tab:\w+)[\"']$"
    )
    assert not [one for one in strings if re.match(named, one)]
    assert set(re.findall(r'cmap="(\w+)"', code)) <= {"cividis"}
