"""Where a script imports torch_musa."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import libcst as cst
from libcst import helpers

from ._converter_imports import dotted, name_of
from ._converter_names import PACKAGE, prefixes

# What sets the environment, which torch_musa reads when it is imported.
ENVIRONMENT = ("os.environ", "environ", "os.putenv", "putenv")


def with_import(
    module: cst.Module, is_launched: bool, needed: Sequence[str]
) -> tuple[cst.Module, int]:
    """Adds `import torch_musa`, and the modules that are needed; returns how many were added.

    They come after the docstring, the imports from `__future__` and what sets the environment,
    before all else. What is imported there already is not added.
    """
    wanted = [*([PACKAGE] if is_launched else []), *needed]
    at = _place(module)
    there = {each for name in _imported_at_once(module, at, is_launched) for each in prefixes(name)}
    missing = [name for name in wanted if name not in there]
    if PACKAGE in missing and len(missing) > 1:
        missing.remove(PACKAGE)  # a module of the package brings it
    if not missing:
        return module, 0
    lines = [
        cst.SimpleStatementLine([cst.Import([cst.ImportAlias(dotted(name))])]) for name in missing
    ]
    body = list(module.body)
    if at == 0 and body:
        first = body[0]
        if isinstance(first, cst.SimpleStatementLine | cst.BaseCompoundStatement):
            lines[0] = lines[0].with_changes(leading_lines=first.leading_lines)
            body[0] = first.with_changes(leading_lines=())
    new = module.with_changes(body=[*body[:at], *lines, *body[at:]], has_trailing_newline=True)
    return new, len(lines)


def _place(module: cst.Module) -> int:
    """After the docstring, __future__, and the first lines that set the environment."""
    at = 1 if module.get_docstring() is not None else 0
    for number, line in enumerate(module.body):
        if number < at:
            continue
        if not isinstance(line, cst.SimpleStatementLine):
            break
        if any(map(_is_future, line.body)) or _sets_environment(module, line):
            at = number + 1
        elif not all(map(_is_harmless, line.body)):
            break
    return at


def _sets_environment(module: cst.Module, line: cst.SimpleStatementLine) -> bool:
    if any(isinstance(small, cst.Import | cst.ImportFrom) for small in line.body):
        return False
    return module.code_for_node(line).lstrip().startswith(ENVIRONMENT) or any(
        isinstance(small, cst.Expr | cst.Assign)
        and module.code_for_node(small).startswith(ENVIRONMENT)
        for small in line.body
    )


def _is_harmless(small: cst.BaseSmallStatement) -> bool:
    """An import of the standard library."""
    if isinstance(small, cst.Import):
        return all(_top(name_of(alias)) in sys.stdlib_module_names for alias in small.names)
    if isinstance(small, cst.ImportFrom) and small.module is not None and not small.relative:
        name = helpers.get_full_name_for_node_or_raise(small.module)
        return _top(name) in sys.stdlib_module_names
    return False


def _imported_at_once(module: cst.Module, at: int, is_launched: bool) -> Iterator[str]:
    """The modules that the first imports bring, before anything could miss torch_musa."""
    for line in module.body[at:] if is_launched else module.body:
        if not isinstance(line, cst.SimpleStatementLine):
            if is_launched:
                return
            continue
        for small in line.body:
            if isinstance(small, cst.Import):
                yield from (name_of(alias) for alias in small.names)
            elif is_launched and not _is_harmless(small):
                return
            if is_launched and isinstance(small, cst.Import) and not _is_plain(small):
                return


def _is_plain(small: cst.Import) -> bool:
    """An import of torch or of the standard library, which torch_musa may follow."""
    plain = {*sys.stdlib_module_names, "torch", PACKAGE}
    return all(_top(name_of(alias)) in plain for alias in small.names)


def _top(name: str) -> str:
    return name.split(".")[0]


def _is_future(small: cst.BaseSmallStatement) -> bool:
    return (
        isinstance(small, cst.ImportFrom)
        and isinstance(small.module, cst.Name)
        and small.module.value == "__future__"
    )
