"""The colours of slices in pictures, from `common.colours`.

A trace file carries none. The Perfetto UI takes a slice's colour from its name, so that a stage has
one colour there, too, but not this one; it reads neither `cname` of the JSON format nor any field
of the protobuf format for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..core.colours import stage_colour


def slice_colours(slices: Iterable[tuple[int, str]]) -> dict[str, str]:
    """The colour of each stage name, outer stages first; takes (depth, name).

    >>> slice_colours([(1, "forward"), (0, "iter")]) == {
    ...     "iter": stage_colour("iter"), "forward": stage_colour("forward")}
    True
    """
    depths: dict[str, int] = {}
    for depth, name in slices:
        depths[name] = min(depth, depths.get(name, depth))
    order = sorted(depths, key=lambda name: (depths[name], name))
    return {name: stage_colour(name) for name in order}
