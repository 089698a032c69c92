"""The code blocks of README.md and of docs/, as they stand there.

A block that no test of this folder runs has a comment before it, which says why or where it runs:
`<!-- not run: needs two hosts -->` or `<!-- run by tests/run/test_the_readme.py -->`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from ..conftest import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PYTHON = ("python", "py", "pycon")
SHELL = ("sh", "bash", "shell", "console")
BLOCK = re.compile(
    r"^(?:<!-- (?P<why>(?:not run: |run by )[^>]+?) -->\n\n?)?"
    r"```(?P<language>\w+)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """why: the comment before it, or empty. line: of its first line of code."""

    page: str
    line: int
    language: str
    code: str
    why: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(path: Path) -> list[Block]:
    text = path.read_text(encoding="utf-8")
    page = path.relative_to(ROOT).as_posix()
    return [
        Block(page, text.count("\n", 0, match.start("code")) + 1, match["language"],
              match["code"], match["why"] or "")
        for match in BLOCK.finditer(text)
    ]  # fmt: skip


def blocks(languages: tuple[str, ...]) -> list[Block]:
    return [block for path in PAGES for block in blocks_of(path) if block.language in languages]
