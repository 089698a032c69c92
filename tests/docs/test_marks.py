"""A page that says where a block runs names a test that reads or repeats it."""

from __future__ import annotations

import re

import pytest

from ..conftest import ROOT
from .blocks import PAGES, PYTHON, SHELL, blocks

pytestmark = pytest.mark.no_torch


def test_the_blocks_are_found() -> None:
    found = blocks(PYTHON), blocks(SHELL)
    assert [len(each) > least for each, least in zip(found, (90, 50), strict=True)] == [True, True]
    fences = sum(
        len(re.findall(rf"(?m)^ *```(?:{'|'.join(PYTHON + SHELL)})$", path.read_text("utf-8")))
        for path in PAGES
    )
    assert len(found[0]) + len(found[1]) == fences


def test_each_mark_is_before_a_block() -> None:
    marks = sum(
        len(re.findall(r"<!-- (?:not run|run by)", path.read_text(encoding="utf-8")))
        for path in PAGES
    )
    assert marks == sum(bool(block.why) for block in blocks(PYTHON + SHELL))


def test_the_named_tests_are_there() -> None:
    named = {block.why.removeprefix("run by ") for block in blocks(PYTHON + SHELL)
             if block.why.startswith("run by ")}  # fmt: skip
    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []
