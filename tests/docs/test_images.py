"""`python -m tools.images` makes every picture that a page shows."""

from __future__ import annotations

import re

from tools.images import DRAWN, IMAGES, MAKERS

from .blocks import PAGES

MADE = {name for names in MAKERS.values() for name in names}


def shown() -> set[str]:
    pattern = re.compile(r"\]\([^)]*\bimages/([^)]+)\)")
    return {name for page in PAGES for name in pattern.findall(page.read_text(encoding="utf-8"))}


def test_each_picture_on_a_page_is_made_or_drawn_by_hand() -> None:
    assert shown() == MADE | DRAWN


def test_each_file_is_on_a_page() -> None:
    assert {path.name for path in IMAGES.iterdir()} == shown()
