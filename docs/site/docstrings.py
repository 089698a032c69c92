"""Docstrings of this project as reStructuredText.

They are written for `help()`: paragraphs, `name: text` of the parameters with the text indented,
lists with a dash, examples, and blocks that are indented as a whole, which stay as they are. What
would be markup anywhere else is escaped, so that no docstring can break the site. Parameters, what
is returned and what is raised come under headings, where a paragraph is about nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import groupby

__all__ = ["to_rest"]

# `name: text`, `first, second: text`, `**kwargs: text`.
PARAMETER = re.compile(r"(\*{0,2}[a-z_]\w*(?:, \*{0,2}[a-z_]\w*)*): (.*)")
# Paragraphs that begin so are about nothing else.
HEADINGS = {
    "Returns": re.compile(r"Returns\b"),
    "Raises": re.compile(r"(Raises\b|[A-Z]\w*(Error|Timeout)\b)"),
}
ITEM = re.compile(r"(-) (.*)")
CODE = re.compile(r"(`+)(.+?)\1", re.DOTALL)
MARKUP = re.compile(r"([\\*|`]|_(?=\W|$))")


def to_rest(lines: list[str], parameters: Collection[str] = ()) -> list[str]:
    """The lines of one docstring, without common indentation, as lines of reStructuredText.

    parameters: those of what it documents, without asterisks.
    """
    paragraphs = [list(group) for filled, group in groupby(lines, key=is_filled) if filled]
    return [line for each in paragraphs for line in [*paragraph(each, parameters), ""]]


def is_filled(line: str) -> bool:
    return bool(line.strip())


def paragraph(lines: list[str], parameters: Collection[str]) -> list[str]:
    first = lines[0]
    if first.startswith(">>>"):
        return lines
    if all(line.startswith("    ") for line in lines):
        return ["::", "", *lines]
    if ITEM.match(first):
        return ["- " + " ".join(text(body)) for _, body in entries(lines, ITEM)]
    if PARAMETER.match(first):
        found = entries(lines, PARAMETER)
        pairs = [(f"``{name}``", text(body)) for name, body in found]
        made = [line for name, body in pairs for line in (name, "    " + " ".join(body))]
        names = {one.strip("* ") for name, _ in found for one in name.split(",")}
        return under("Parameters", made) if names <= set(parameters) else made
    for heading, beginning in HEADINGS.items():
        if beginning.match(first):
            return under(heading, text(lines))
    return text(lines)


def under(heading: str, lines: list[str]) -> list[str]:
    """A field; Sphinx shows those of a docstring as one list."""
    return [f":{heading}:", *(f"    {line}" for line in lines)]


def entries(lines: list[str], beginning: re.Pattern[str]) -> list[tuple[str, list[str]]]:
    """What stands before and after the mark of each entry; it goes on to the next such line."""
    found: list[tuple[str, list[str]]] = []
    for line in lines:
        match = beginning.match(line)
        if match:
            found.append((match[1], [match[2]]))
        else:
            found[-1][1].append(line)
    return found


def text(lines: list[str]) -> list[str]:
    """Words with code in backticks, as one line: code may go over the end of a line."""
    joined = " ".join(line.strip() for line in lines)
    result, end = "", 0
    for match in CODE.finditer(joined):
        result += escaped(joined[end : match.start()]) + code(match[2])
        end = match.end()
        # Inline code ends only before white space or punctuation.
        if joined[end : end + 1].isalnum():
            result += "\\ "
    return [result + escaped(joined[end:])]


def code(inside: str) -> str:
    return f"``{inside}``" if inside.strip() == inside else escaped(inside)


def escaped(words: str) -> str:
    return MARKUP.sub(r"\\\1", words)
