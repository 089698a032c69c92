"""Checks of arguments, whose errors name the argument, what came and what is allowed.

>>> check_int("wait_steps", 4, least=0)
4
>>> check_bool("with_stack", 1)
Traceback (most recent call last):
    ...
TypeError: with_stack must be a bool, not 1
"""

from __future__ import annotations

import math
import os
from pathlib import Path

__all__ = [
    "check_bool",
    "check_int",
    "check_logger",
    "check_path",
    "check_seconds",
    "check_str",
    "check_tolerance",
]


def check_bool(name: str, value: object) -> bool:
    """The value, or TypeError."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, not {value!r:.100}")
    return value


def check_int(name: str, value: object, least: int | None = None, *, or_none: bool = False) -> int:
    """The value, or TypeError, or ValueError below `least`. or_none: None is allowed as well, and
    the caller has dealt with it."""
    if isinstance(value, bool) or not isinstance(value, int):
        allowed = "an int or None" if or_none else "an int"
        raise TypeError(f"{name} must be {allowed}, not {value!r:.100}")
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
        raise TypeError(f"{name} must be a number of seconds, not {value!r:.100}")
    enough = value > 0 if least is None else value >= least
    if not enough or (most is None and value == math.inf):
        finite = "finite and " if most is None else ""
        allowed = "above 0" if least is None else f"at least {least}"
        raise ValueError(f"{name} must be {finite}{allowed}, not {value!r}")
    if most is not None and value > most:
        raise ValueError(f"{name} must be at most {most}, not {value!r}")
    return float(value)


def check_tolerance(name: str, value: object) -> float | None:
    """The value, which may be None, or TypeError, or ValueError unless it is finite and >= 0."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number or None, not {value!r:.100}")
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be finite and not negative, not {value!r}")
    return float(value)


def check_str(name: str, value: object) -> str:
    """The value, or TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {value!r:.100}")
    return value


def check_path(name: str, value: object, *, or_none: bool = False) -> Path:
    """The path, or TypeError. or_none: as for `check_int`."""
    if not isinstance(value, (str, os.PathLike)):
        allowed = "a path or None" if or_none else "a path"
        raise TypeError(f"{name} must be {allowed}, not {value!r:.100}")
    return Path(os.fsdecode(value))


def check_logger(name: str, value: object) -> None:
    """TypeError unless it is None or takes messages as a `logging.Logger` does."""
    if value is not None and not callable(getattr(value, "info", None)):
        raise TypeError(f"{name} must be a logging.Logger or None, not {value!r:.100}")
