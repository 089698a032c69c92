"""`repr` of objects: the class, and the values that identify the object."""

from __future__ import annotations

_VALUE_MAX = 100  # characters of one value


def short_repr(shown: object, *names: str) -> str:
    """`Class(name=value, …)` of the attributes and properties `names`, for `__repr__`.

    Leading underscores are left out, values are cut after 100 characters. An attribute that cannot
    be read, as where `__init__` raised, is left out; so nothing is raised.

    >>> class Point:
    ...     x = 1
    ...     __repr__ = lambda self: short_repr(self, "x", "y")
    >>> Point()
    Point(x=1)
    """
    parts = []
    for name in names:
        try:
            text = repr(getattr(shown, name))
        except Exception:
            continue
        cut = text if len(text) <= _VALUE_MAX else f"{text[:_VALUE_MAX]}…"
        parts.append(f"{name.lstrip('_')}={cut}")
    return f"{type(shown).__name__}({', '.join(parts)})"
