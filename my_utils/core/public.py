"""Sets the module path under which users import a class, whatever file it is written in."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import ForwardRef, TypeVar

_C = TypeVar("_C", bound=type)


def public(module: str) -> Callable[[_C], _C]:
    """A decorator, the outermost one of a class: sets its `__module__`.

    Pickles, messages and `help` then name the public path, so that files may move. It comes after
    `dataclass`, which reads annotations by the module that the class is written in.

    It imports that path, a compatibility module, and loads nothing else: cloudpickle stores a class
    by its name only if the module is there already, and else copies the class.

    The names in annotations stay those of the module that the class is written in, so that
    `typing.get_type_hints` finds them there.

    >>> @public("my_utils.timing")
    ... class Times:
    ...     pass
    >>> Times.__module__
    'my_utils.timing'
    """

    def mark(cls: _C) -> _C:
        importlib.import_module(module)
        annotations = cls.__annotations__
        for name, text in annotations.items():
            if isinstance(text, str):
                annotations[name] = ForwardRef(
                    text, is_argument=False, module=cls.__module__, is_class=True
                )
        cls.__module__ = module
        return cls

    return mark
