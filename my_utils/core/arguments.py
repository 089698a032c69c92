"""Checks of arguments. Errors name the argument, what came and what is allowed.

>>> check_int("wait_steps", 4, least=0)
4
>>> check_bool("with_stack", 1)
Traceback (most recent call last):
    ...
TypeError: with_stack must be a bool, not 1
"""

from __future__ import annotations

import contextlib
import logging
import math
import numbers
import operator
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from .printable import escaped

_PATH_BYTES_MAX = 900  # of the C part, in UTF-8


def wrong_type(name: str, allowed: str, value: object) -> TypeError:
    """The error for an argument that is not one of the allowed values."""
    return TypeError(f"{name} must be {allowed}, not {value!r:.100}")


def kind(value: object) -> str:
    """The text in messages instead of a value that is long, or a secret."""
    return type(value).__name__


def check_bool(name: str, value: object) -> bool:
    """The value, or TypeError."""
    if not isinstance(value, bool):
        raise wrong_type(name, "a bool", value)
    return value


def check_switch(name: str, value: object) -> bool:
    """The bool that the value is or stands for, as whole numbers and numpy's bools do; TypeError
    for anything else. For parameters that have always taken them.

    >>> check_switch("enabled", 1)
    True
    >>> check_switch("enabled", "False")
    Traceback (most recent call last):
        ...
    TypeError: enabled must be a bool, not 'False'
    """
    if isinstance(value, numbers.Integral) or type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise wrong_type(name, "a bool", value)


def check_int(name: str, value: object, least: int | None = None, *, or_none: bool = False) -> int:
    """The int that the value is or stands for, as numpy's do; TypeError for anything else, and
    ValueError below `least`. or_none: messages say that None is allowed as well; the caller has
    handled None."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        allowed = "an int or None" if or_none else "an int"
        raise wrong_type(name, allowed, value)
    value = operator.index(value)
    if least is not None and value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")
    return value


def check_seconds(
    name: str, value: object, least: float | None = None, most: float | None = None
) -> float:
    """The value, or TypeError, or ValueError unless it is at least `least` (None: above 0) and at
    most `most` (None: finite; math.inf: it may be endless).

    >>> check_seconds("timeout_s", math.inf, 0, math.inf)
    inf
    >>> check_seconds("every_s", 0)
    Traceback (most recent call last):
        ...
    ValueError: every_s must be finite and above 0, not 0
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(name, "a number of seconds", value)
    enough = value > 0 if least is None else value >= least
    if not enough or (most is None and value == math.inf):
        finite = "finite and " if most is None else ""
        allowed = "above 0" if least is None else f"at least {least}"
        raise ValueError(f"{name} must be {finite}{allowed}, not {value!r}")
    if most is not None and value > most:
        raise ValueError(f"{name} must be at most {most}, not {value!r}")
    return float(value)


def parse_seconds(text: str) -> float:
    """Seconds above 0 out of a text, or ValueError.

    >>> parse_seconds("1.5")
    1.5
    """
    try:
        return check_seconds("it", float(text))
    except ValueError:
        raise ValueError(f"must be seconds above 0, not {text!r}") from None


def check_choice(name: str, value: Any, allowed: Collection[Any]) -> Any:
    """The value, or ValueError unless it is one of those that are allowed."""
    if value not in tuple(allowed):
        text = ", ".join(map(repr, allowed))
        raise ValueError(f"{name} must be one of {text}, not {value!r:.100}")
    return value


def check_tolerance(name: str, value: object) -> float | None:
    """The value, which may be None, or TypeError, or ValueError unless it is finite and >= 0."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(name, "a number or None", value)
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be finite and not negative, not {value!r}")
    return float(value)


def check_str(name: str, value: object) -> str:
    """The value, or TypeError."""
    if not isinstance(value, str):
        raise wrong_type(name, "a str", value)
    return value


def check_str_or_none(name: str, value: object) -> str | None:
    """The value, or TypeError."""
    if value is not None and not isinstance(value, str):
        raise wrong_type(name, "a str or None", value)
    return value


def check_classes(name: str, value: object) -> tuple[type | str, ...]:
    """The classes, or names of classes, of which there may be one or several, or TypeError."""
    if isinstance(value, type | str):
        return (value,)
    kinds = tuple(value) if isinstance(value, Iterable) else (value,)
    for kind in kinds:
        if not isinstance(kind, type | str):
            raise TypeError(f"{name} must hold classes or names of classes, not {kind!r:.100}")
    return kinds


def check_path(name: str, value: object, *, or_none: bool = False) -> Path:
    """The path, or TypeError. or_none: as for `check_int`."""
    if not isinstance(value, (str, os.PathLike)):
        allowed = "a path or None" if or_none else "a path"
        raise wrong_type(name, allowed, value)
    return Path(os.fsdecode(value))


def check_logger(name: str, value: object) -> None:
    """TypeError unless it is None or takes messages as a `logging.Logger` does."""
    if value is not None and not callable(getattr(value, "info", None)):
        raise wrong_type(name, "a logging.Logger or None", value)


def check_output_path(name: str, value: object) -> str:
    """The absolute path as a str, short enough for the C part, or TypeError or ValueError."""
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
    """The value if it is printable, has one line and at most `most` bytes in UTF-8. Bytes of names
    that are not UTF-8 become escapes."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {kind(value)}")
    text = escaped(value)
    length = len(text.encode())
    if length > most:
        raise ValueError(f"{name} must have at most {most} bytes, not {length}")
    if not text.isprintable():
        raise ValueError(f"{name} must be printable and on one line, not {value!r}")
    return text


def check_level(level: object) -> int:
    """The number of a level of `logging`, given by its number or its name in any case."""
    if isinstance(level, str):
        number = logging.getLevelName(level.upper())
        if not isinstance(number, int):
            raise ValueError(
                f"level must be a number or a level's name such as INFO, not {level!r}"
            )
        return number
    return check_integer("level", level, 0, 2**31 - 1)


def check_integer(name: str, value: object, low: int, high: int) -> int:
    """The int that the value is or stands for, as numpy's do, from `low` to `high`."""
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
