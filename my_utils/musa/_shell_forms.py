"""Reads JSON from a command line, also if a shell has removed quotes.

A shell takes the quotes of `{"cuda":"musa"}` away, splits `{"a":"b","c":"d"}` into two words, and
on Windows leaves backslashes and single quotes in. All of that is read; what is left ambiguous is
refused.

>>> parse_mapping(['{"cuda": "musa"}']) == parse_mapping(["{cuda:musa}"]) == {"cuda": "musa"}
True
>>> parse_mapping(["cuda:musa", "at::cuda:at::musa"])
{'cuda': 'musa', 'at::cuda': 'at::musa'}
>>> parse_list(["[csrc/npu,csrc/xpu]"])
['csrc/npu', 'csrc/xpu']
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

# A colon that is no part of `::`.
COLON = re.compile(r"(?<!:):(?!:)")


def parse_mapping(words: Sequence[str]) -> dict[str, str]:
    """An object of strings; ValueError when the words can be read in more than one way, or none."""
    text = " ".join(words)
    for value in _as_json(text):
        if isinstance(value, dict) and all(isinstance(each, str) for each in value.values()):
            return value
        raise ValueError(f"not an object of strings: {text}")
    pieces = [
        piece for word in ([text] if _is_in(text, "{}") else words) for piece in _pieces(word, "{}")
    ]
    pairs: dict[str, str] = {}
    for piece in pieces:
        sides = [_unquoted(side) for side in COLON.split(piece)]
        if len(sides) != 2 or not sides[0]:
            raise ValueError(f"cannot be read as old:new: {piece}")
        pairs[sides[0]] = sides[1]
    if not pairs:
        raise ValueError("there is nothing in it")
    return pairs


def parse_list(words: Sequence[str]) -> list[str]:
    """A list of strings, in brackets or as separate words."""
    text = " ".join(words)
    for value in _as_json(text):
        if isinstance(value, list) and all(isinstance(each, str) for each in value):
            return value
        raise ValueError(f"not a list of strings: {text}")
    if not _is_in(_unquoted(text), "[]"):
        return list(words)
    return [_unquoted(piece) for piece in _pieces(_unquoted(text), "[]")]


def _as_json(text: str) -> Iterator[Any]:
    """What the text is as JSON, once the remains of a shell's quoting are gone; at most one."""
    for form in (text, _unquoted(text), _unquoted(text).replace('\\"', '"')):
        if form[:1] in ("{", "["):
            try:
                yield json.loads(form)
                return
            except ValueError:
                pass


def _is_in(text: str, brackets: str) -> bool:
    return text.startswith(brackets[0]) and text.endswith(brackets[1])


def _pieces(text: str, brackets: str) -> list[str]:
    text = _unquoted(text)
    inner = text[1:-1] if _is_in(text, brackets) else text
    return [piece.strip() for piece in inner.split(",") if piece.strip()]


def _unquoted(text: str) -> str:
    text = text.strip()
    for quote in ('\\"', "'", '"'):
        if len(text) >= 2 * len(quote) and text.startswith(quote) and text.endswith(quote):
            return text[len(quote) : -len(quote)].strip()
    return text
