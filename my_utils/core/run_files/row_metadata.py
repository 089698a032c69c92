"""The metadata of a row: `key=value` pairs with percent-encoded words."""

from __future__ import annotations

import re
from urllib.parse import unquote

DIGITS_MAX = 18  # more may not fit into 64 bits
_SPECIAL = re.compile(r'[,="%\r\n]')
_ENCODED = str.maketrans({character: f"%{ord(character):02X}" for character in ',="%\r\n'})


def metadata_pairs(text: str) -> dict[str, str]:
    """The pairs, decoded. Thread-safe.

    >>> metadata_pairs("stage=backward,modules=a%2Cb")
    {'stage': 'backward', 'modules': 'a,b'}
    """
    pairs = (pair.partition("=") for pair in text.split(",") if pair)
    return {unquote(key): unquote(value) for key, _, value in pairs}


def encoded_word(text: str) -> str:
    """A key or a value as it is in the metadata.

    >>> encoded_word("a=b, 50%")
    'a%3Db%2C 50%25'
    """
    return text.translate(_ENCODED) if _SPECIAL.search(text) else text


def whole_number(text: str | None) -> int | None:
    """A number that is not negative and fits into 64 bits; None for anything else. Thread-safe.

    >>> whole_number("17"), whole_number("-1"), whole_number(None)
    (17, None, None)
    """
    if text is None or not text.isdecimal() or len(text) > DIGITS_MAX:
        return None
    return int(text)
