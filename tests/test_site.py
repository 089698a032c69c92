"""The site's own code: docstrings as reStructuredText, the menu, and which names the reference has.

`make site` builds all of it, with warnings as errors.
"""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable

import pytest

from .conftest import ROOT

pytestmark = pytest.mark.no_torch

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def to_rest() -> Callable[[str], str]:
    convert = runpy.run_path(str(DOCS / "site" / "docstrings.py"))["to_rest"]
    return lambda text: "\n".join(convert(text.splitlines())).strip()


CASES = [
    ("One line\nand another.", "One line and another."),
    (
        "first: a number,\n    in ns.\nothers, **more: text",
        "``first``\n    a number, in ns.\n``others, **more``\n    text",
    ),
    ("- one\n  goes on\n- two", "- one goes on\n- two"),
    (">>> f(1)\n1", ">>> f(1)\n1"),
    ("Outcomes:\n\n    done   it is\n    late", "Outcomes:\n\n::\n\n    done   it is\n    late"),
    ("`x` and `a\n* b`s of *args", "``x`` and ``a * b``\\ s of \\*args"),
    ("a|b, rank_ and own_names", "a\\|b, rank\\_ and own_names"),
    ("a ` alone, a \\ too", "a \\` alone, a \\\\ too"),
    ("", ""),
]


UNDER_HEADINGS = """What it does.

x: text
**more: text

y: no parameter

Returns the sum. ValueError if it is none.

ImportError without numpy."""

WITH_HEADINGS = """What it does.

:Parameters:
    ``x``
        text
    ``**more``
        text

``y``
    no parameter

:Returns:
    Returns the sum. ValueError if it is none.

:Raises:
    ImportError without numpy."""


def test_parameters_and_what_is_raised_are_under_headings() -> None:
    convert = runpy.run_path(str(DOCS / "site" / "docstrings.py"))["to_rest"]
    rest = convert(UNDER_HEADINGS.splitlines(), ["x", "more"])
    assert "\n".join(rest).strip() == WITH_HEADINGS


@pytest.mark.parametrize(("docstring", "rest"), CASES)
def test_a_docstring_as_rest(to_rest: Callable[[str], str], docstring: str, rest: str) -> None:
    assert to_rest(docstring) == rest


def test_the_reference_has_every_module_of_the_names() -> None:
    """A module that docs/names.md names stands on a page, with all of its `__all__`."""
    page = (DOCS / "names.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(my_utils\.[\w.]+)`", page))
    pages = [path.read_text(encoding="utf-8") for path in (DOCS / "api").glob("*.rst")]
    shown = re.findall(r"^\.\. automodule:: (\S+)$", "\n".join(pages), re.MULTILINE)
    assert named - set(shown) == set()
    assert len(shown) == len(set(shown))


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} - {"index.md"}
    assert {page for page in pages if f"]({page}" not in index} == set()


def test_the_page_of_a_wrong_address_knows_the_folders() -> None:
    text = (DOCS / "site" / "404.html").read_text(encoding="utf-8")
    (known,) = re.findall(r"\\/\(([\w|]+)\)\\/", text)
    folders = {path.name for path in DOCS.iterdir() if path.is_dir()}
    assert set(known.split("|")) == folders - {"images", "site"}


def test_the_folders_are_the_groups_of_the_menu() -> None:
    text = (DOCS / "site" / "conf.py").read_text(encoding="utf-8")
    groups = set(re.findall(r'^    "(\w*)": "', text, re.MULTILINE))
    folders = {path.parent.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.[mr][ds]*")}
    assert groups == {folder.replace(".", "") for folder in folders} - {"site"}
