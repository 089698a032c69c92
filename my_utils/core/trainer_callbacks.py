"""The classes that the trainers of transformers and Lightning demand of a callback, where these are
in use."""

from __future__ import annotations

import sys
from typing import Any

_BASES = (
    ("transformers", "TrainerCallback"),
    ("lightning.pytorch", "Callback"),
    ("pytorch_lightning", "Callback"),
)


def new_callback(cls: type) -> Any:
    """An object of a class that is `cls`, and has all the methods that the frameworks in use call;
    for `__new__`."""
    found = [getattr(sys.modules[module], name) for module, name in _BASES if module in sys.modules]
    bases = (cls, *dict.fromkeys(found))
    return object.__new__(type(cls.__name__, bases, {"__module__": cls.__module__}))
