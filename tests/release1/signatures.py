"""Lists the public names of the package, and what their callables take.

    python -m tests.release1.signatures > tests/release1/signatures.json

ran on the first release; `test_signatures.py` compares today's code with that. The names are those
of each public module's `__all__`, and of docs/names.md.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import json
import pkgutil
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

import my_utils

# Of the modules without __all__.
MORE = {
    "my_utils": ["DebugLayer"],
    "my_utils.utils": ["DebugLayer"],
    "my_utils.demo": ["main"],
    "my_utils.timeline": ["main"],
}

# Classes of the C part whose methods are what hooks call, not what users do.
INTERNAL = {"ForwardPasses"}

PLAIN = (bool, int, float, str, bytes, tuple, frozenset, type(None))

MARKS = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}

Parameters = list[str] | None


def public_modules() -> list[str]:
    found = [module.name for module in pkgutil.walk_packages(my_utils.__path__, "my_utils.")]
    return ["my_utils", *(name for name in sorted(found) if "._" not in name)]


def names_of(module: ModuleType) -> list[str]:
    return sorted({*getattr(module, "__all__", ()), *MORE.get(module.__name__, ())})


def default_text(value: object) -> str:
    return repr(value) if isinstance(value, PLAIN) and not isinstance(value, enum.Enum) else "..."


def parameters_of(value: Any) -> Parameters:
    """As they stand between the brackets of a `def`, with `/` and `*`; None where it is not known.
    Defaults that are no plain values are `...`."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return None
    # What was renamed since is still taken by its name from then.
    before = {new: old for old, new in getattr(value, "__renamed__", {}).items()}
    plain = [
        each.replace(annotation=each.empty, name=before.get(each.name, each.name))
        for each in signature.parameters.values()
    ]
    found = []
    for each in plain:
        default = "" if each.default is each.empty else f"={default_text(each.default)}"
        found.append(MARKS.get(each.kind.name, "") + each.name + default)
    kinds = [each.kind for each in plain]
    is_star = [kind is inspect.Parameter.VAR_POSITIONAL for kind in kinds]
    keyword_only = [i for i, kind in enumerate(kinds) if kind is inspect.Parameter.KEYWORD_ONLY]
    if keyword_only and not any(is_star):
        found.insert(keyword_only[0], "*")
    positional_only = kinds.count(inspect.Parameter.POSITIONAL_ONLY)
    if positional_only:
        found.insert(positional_only, "/")
    return found


def parameters_of_class(cls: type) -> Parameters:
    """None for enums and for classes whose construction is Python's own."""
    if issubclass(cls, enum.Enum):
        return None
    if inspect.isfunction(cls.__init__) and cls.__init__.__module__.startswith("my_utils"):
        found = parameters_of(cls.__init__)
        return None if found is None else found[1:]
    is_ours = any(_is_ours(each) and "__new__" in vars(each) for each in cls.__mro__)
    return parameters_of(cls) if is_ours or dataclasses.is_dataclass(cls) else None


def _is_ours(cls: type) -> bool:
    return cls.__module__.startswith("my_utils") and cls.__name__ not in INTERNAL


def members_of(cls: type) -> Iterator[tuple[str, str, Parameters]]:
    """(name, kind, parameters) of what the class has of ours."""
    if issubclass(cls, enum.Enum):
        for member in cls:
            yield member.name, f"member {member.value!r}", None
    for name in sorted(dir(cls)):
        owner = next((each for each in cls.__mro__ if name in vars(each)), None)
        if name.startswith("_") or owner is None or not _is_ours(owner):
            continue
        value = inspect.getattr_static(cls, name)
        if isinstance(value, enum.Enum):
            continue
        if callable(getattr(cls, name)):
            static = isinstance(value, (staticmethod, classmethod))
            yield name, "static" if static else "method", parameters_of(getattr(cls, name))
        else:
            yield name, "attribute", None


def describe(module: ModuleType, names: Iterable[str]) -> dict[str, list[Any]]:
    """By name, and by name of a class and its member: the kind and the parameters."""
    found: dict[str, list[Any]] = {}
    for name in names:
        value = getattr(module, name)
        if isinstance(value, type):
            found[name] = ["class", parameters_of_class(value)]
            for member, kind, parameters in members_of(value):
                found[f"{name}.{member}"] = [kind, parameters]
        elif callable(value):
            found[name] = ["function", parameters_of(value)]
        else:
            found[name] = [f"a {type(value).__name__}", None]
    return found


def main() -> None:
    lines = []
    for name in public_modules():
        module = importlib.import_module(name)
        entries = describe(module, names_of(module)).items()
        inner = ",\n".join(f"  {json.dumps(key)}: {json.dumps(what)}" for key, what in entries)
        lines.append(f' "{name}": {{\n{inner}\n }}' if inner else f' "{name}": {{}}')
    print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main()
