"""One colour for a stage, by its name, in every picture: the page, the timeline, the live view.

The colours are those of Okabe and Ito (2008), which the colour-blind tell apart. Stages that
`my_utils run` records have each its own; another name gets one by its hash, the same in every
process.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

UNTIMED = "#b5bac2"

_OF_STAGE = {
    "input": "#d55e00",
    "h2d": "#f0e442",
    "forward": "#56b4e9",
    "loss": "#7fc8a9",
    "backward": "#0072b2",
    "optimizer": "#009e73",
    "collective": "#cc79a7",
    "checkpoint": "#e69f00",
    "eval": "#8c6bb1",
    "untimed": UNTIMED,
}
_OTHERS = (
    "#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#0072b2", "#d55e00", "#8c6bb1", "#b09c3f",
    "#7fc8a9", "#a6761d",
)  # fmt: skip


def stage_colour(name: str) -> str:
    """The ground of a stage, "#rrggbb". Of a path such as "iter/forward" the last name counts.

    >>> stage_colour("iter/forward") == stage_colour("forward")
    True
    """
    last = name.rpartition("/")[2]
    known = _OF_STAGE.get(last)
    if known is not None:
        return known
    return _OTHERS[zlib.crc32(last.encode("utf-8", "surrogatepass")) % len(_OTHERS)]


def slice_colours(slices: Iterable[tuple[int, str]]) -> dict[str, str]:
    """The colour of each stage name, outer stages first; takes (depth, name).

    For pictures: a trace file carries no colours. The Perfetto UI takes a slice's colour from its
    name, so that a stage has one colour there, too, but not this one; it reads neither `cname` of
    the JSON format nor any field of the protobuf format for it.

    >>> slice_colours([(1, "forward"), (0, "iter")]) == {
    ...     "iter": stage_colour("iter"), "forward": stage_colour("forward")}
    True
    """
    depths: dict[str, int] = {}
    for depth, name in slices:
        depths[name] = min(depth, depths.get(name, depth))
    order = sorted(depths, key=lambda name: (depths[name], name))
    return {name: stage_colour(name) for name in order}


def text_colour(ground: str) -> str:
    """Black or white, whichever has the larger contrast on the ground, as WCAG 2.1 measures it.

    >>> text_colour("#f0e442"), text_colour("#0072b2")
    ('#000000', '#ffffff')
    """
    light = luminance(ground)
    return "#000000" if (light + 0.05) ** 2 > 0.05 * 1.05 else "#ffffff"


def luminance(colour: str) -> float:
    """The relative luminance of "#rrggbb" in WCAG 2.1: 0 for black, 1 for white."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
