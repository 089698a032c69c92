"""A stage has one colour in all pictures, and text on it can be read."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from my_utils.core.colours import luminance, stage_colour, text_colour
from my_utils.trace.timeline import main

from ..support.run_csv import HEADER
from .test_timeline import row

STAGES = (
    "input", "h2d", "forward", "loss", "backward", "optimizer", "collective", "checkpoint", "eval",
    "untimed",
)  # fmt: skip
LEAST_CONTRAST = 4.5  # of WCAG 2.1, for text of any size

# How a colour looks to people without cones for red, green or blue (Viénot 1999, Brettel 1997, in
# linear RGB).
NO_RED = ((0.11238, 0.88762, 0.0), (0.11238, 0.88762, 0.0), (0.00401, -0.00401, 1.0))
NO_GREEN = ((0.29275, 0.70725, 0.0), (0.29275, 0.70725, 0.0), (-0.02234, 0.02234, 1.0))
LEAST_APART = 0.045  # in linear RGB, of two stages that stand beside each other


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", [*STAGES, *(f"stage {number}" for number in range(50))])
def test_text_on_every_colour_can_be_read(name: str) -> None:
    ground = stage_colour(name)
    assert contrast(ground, text_colour(ground)) >= LEAST_CONTRAST


@pytest.mark.parametrize("matrix", [NO_RED, NO_GREEN])
def test_the_colour_blind_tell_the_stages_of_a_step_apart(
    matrix: tuple[tuple[float, float, float], ...],
) -> None:
    seen = {name: looks(stage_colour(name), matrix) for name in STAGES}
    for one, other in itertools.pairwise(STAGES):
        apart = sum((a - b) ** 2 for a, b in zip(seen[one], seen[other], strict=True)) ** 0.5
        assert apart >= LEAST_APART, (one, other, apart)


def looks(colour: str, matrix: tuple[tuple[float, float, float], ...]) -> list[float]:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return [sum(a * b for a, b in zip(line, linear, strict=True)) for line in matrix]


def test_the_timeline_paints_stages_in_their_colours(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    text = HEADER
    for number, name in enumerate(STAGES[:6]):
        text += row(f"1.0{number}0000000", 0, name, "START", "", number + 1, 0)
        text += row(f"1.0{number}9000000", 0, name, "END", "9.000000", number + 1, 0)
    (tmp_path / "profile_rank_0.csv").write_text(text, encoding="utf-8")
    picture = tmp_path / "steps.svg"
    assert main([str(tmp_path), "-o", str(picture), "--steps", "0:1", "--quiet"]) == 0
    painted = re.findall(r'style="fill: (#[0-9a-f]{6})', picture.read_text())
    assert {stage_colour(name) for name in STAGES[:6]} <= set(painted)
    assert text_colour(stage_colour("h2d")) == "#000000"
