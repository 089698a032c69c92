"""Reads switches from the environment, all in one way.

`1`, `true`, `yes` and `on` are true, in any case; `0`, `false`, `no`, `off` and an empty value are
false. Anything else warns once, and the default holds. `docs/environment.md` lists all variables.

>>> os.environ["EXAMPLE_SWITCH"] = "Yes"
>>> read_switch("EXAMPLE_SWITCH"), read_switch("NOT_SET", default=True)
(True, True)
>>> del os.environ["EXAMPLE_SWITCH"]
"""

from __future__ import annotations

import os

from .warnings import warn_once

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off", "")


def read_switch(name: str, *, default: bool = False) -> bool:
    """Whether the variable is true; `default` if it is not set or not a known value."""
    return read_choice(name, default=default) is True


_at_import: dict[str, bool] = {}


def read_at_import(*names: str) -> None:
    """For the module that users import: the switches are read now, and again if it is reloaded."""
    _at_import.update((name, read_switch(name)) for name in names)


def switch_at_import(name: str) -> bool:
    """What `read_at_import` found."""
    if name not in _at_import:
        read_at_import(name)
    return _at_import[name]


def read_choice(name: str, *words: str, default: bool) -> bool | str:
    """Like `read_switch`, or the variable's value in lower case if it is one of `words`."""
    text = os.environ.get(name)
    if text is None:
        return default
    said = text.strip().lower()
    if said in words:
        return said
    if said in _TRUE or said in _FALSE:
        return said in _TRUE
    allowed = ", ".join((*_TRUE, *_FALSE[:-1], *words))
    warn_once(
        f"environment:{name}",
        f"{name} in the environment should be one of {allowed}, not {text!r:.100}; it is "
        f"ignored, which means {'on' if default else 'off'}",
    )
    return default
