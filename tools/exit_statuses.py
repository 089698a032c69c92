"""The table of docs/exit-statuses.md, from the parsers of the commands: `python -m
tools.exit_statuses`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from my_utils.cli.command import load
from my_utils.cli.table import COMMANDS, Command

PAGE = Path(__file__).resolve().parents[1] / "docs" / "exit-statuses.md"
TABLE = re.compile(r"(?<=tools\.exit_statuses` -->\n\n).*?(?=\n\n<!-- end -->)", re.DOTALL)
NUMBERS = range(5)  # others are in the text of the page


def table() -> str:
    head = ["Command", *map(str, NUMBERS)]
    return "\n".join(map(row, [head, ["---"] * len(head), *map(cells, COMMANDS)]))


def cells(command: Command) -> list[str]:
    statuses = load(command).command_parser().statuses
    texts = [re.sub(r"--[\w-]+", r"`\g<0>`", statuses.get(number, "")) for number in NUMBERS]
    return [f"`{' '.join(command.words)}`", *texts]


def row(texts: list[str]) -> str:
    return f"| {' | '.join(texts)} |"


def page() -> str:
    text, made = TABLE.subn(lambda _: table(), PAGE.read_text(encoding="utf-8"))
    assert made == 1, "the page has lost the comments around its table"
    return text


def main() -> int:
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
