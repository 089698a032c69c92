"""Arguments of the logger: each is what it should be, or TypeError or ValueError names it."""

from __future__ import annotations

import contextlib
import logging
import numbers
import operator
import os
from typing import Any

_PATH_BYTES_MAX = 900  # of the C part, in UTF-8


def check_path(name: str, value: object) -> str:
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name} must be a str or a path, not {kind(value)}")
    path = os.fspath(value)
    if not isinstance(path, str):
        raise TypeError(f"{name} must be a str or a path of str, not one of {kind(path)}")
    if not path or "\0" in path:
        raise ValueError(f"{name} must be a path that is not empty and has no NUL, not {path!r}")
    # A later os.chdir() must not move the files. There may be no current directory.
    with contextlib.suppress(OSError):
        path = os.path.abspath(path)
    length = len(os.fsencode(path))
    if length > _PATH_BYTES_MAX:
        raise ValueError(f"{name} must have at most {_PATH_BYTES_MAX} bytes, not {length}")
    return path


def check_text(name: str, value: object, most: int) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {kind(value)}")
    length = len(value.encode("utf-8", "surrogatepass"))
    if length > most:
        raise ValueError(f"{name} must have at most {most} bytes, not {length}")
    if not value.isprintable():
        raise ValueError(f"{name} must be printable and on one line, not {value!r}")
    return value


def check_level(level: object) -> int:
    if isinstance(level, str):
        number = logging.getLevelName(level.upper())
        if not isinstance(number, int):
            raise ValueError(
                f"level must be a number or a level's name such as INFO, not {level!r}"
            )
        return number
    return check_int("level", level, 0, 2**31 - 1)


def check_int(name: str, value: object, low: int, high: int) -> int:
    if type(value) is int:
        number = value
    elif isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an int, not {kind(value)}")
    else:
        number = operator.index(value)
    if not low <= number <= high:
        raise ValueError(f"{name} must be from {low} to {high}, not {number}")
    return number


def exact_ns(name: str, value: object, unit_ns: int, most: int) -> int:
    """`value` units of `unit_ns` nanoseconds, rounded once, to the nearest (a tie to even)."""
    number: Any = value
    if type(value) is not float and type(value) is not int:
        if isinstance(value, bool) or not isinstance(value, numbers.Number):
            raise TypeError(f"{name} must be a number, not {kind(value)}")
        if isinstance(value, numbers.Integral):
            number = operator.index(value)
    try:
        numerator, denominator = number.as_integer_ratio()
    except (AttributeError, TypeError):
        raise TypeError(f"{name} must be a real number, not {kind(value)}") from None
    except (ValueError, OverflowError):
        raise ValueError(f"{name} must be finite, not {value!r}") from None
    ns, rest = divmod(numerator * unit_ns, denominator)
    if 2 * rest > denominator or (2 * rest == denominator and ns % 2 == 1):
        ns += 1
    if not -most <= ns <= most:
        least_unit, most_unit = -most // unit_ns, most // unit_ns
        raise ValueError(f"{name} must be from {least_unit} to {most_unit}, not {value!r}")
    return int(ns)


def kind(value: object) -> str:
    return type(value).__name__


def reason(error: BaseException) -> str:
    """An error on one line; for the operating system's, what it says of which file."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or kind(error)
