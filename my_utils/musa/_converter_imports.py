"""Import statements of torch.cuda, as they are written with torch_musa.

There is no module `torch.musa`: what is imported from torch.cuda comes from `torch_musa`. A name
that a statement binds is bound afterwards, too, under the new name if it is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import libcst as cst
from libcst import helpers

from . import _converter_names as names

Statements = cst.BaseSmallStatement | cst.FlattenSentinel[cst.BaseSmallStatement]
SPACE = cst.SimpleWhitespace(" ")
SEMICOLON = cst.Semicolon(whitespace_after=SPACE)
COMMA = cst.Comma(whitespace_after=SPACE)


@dataclass(frozen=True)
class _Piece:
    """One name of the new statements: `import name` without a module, else `from module`."""

    module: str | None
    alias: cst.ImportAlias


def name_of(alias: cst.ImportAlias) -> str:
    return helpers.get_full_name_for_node_or_raise(alias.name)


def dotted(path: str) -> cst.Attribute | cst.Name:
    found = helpers.parse_template_expression(path)
    assert isinstance(found, cst.Attribute | cst.Name)
    return found


def new_import(node: cst.Import, binds_torch: Callable[[cst.ImportAlias], bool]) -> Statements:
    """`import torch.cuda` and its kind.

    Parameters:
        binds_torch: whether `torch`, which a name of the statement binds, is bound by another one.
    """
    pieces: list[_Piece] = []
    for alias in node.names:
        pieces.extend(_import_pieces(alias, binds_torch))
    return _written(node, pieces)


def _import_pieces(
    alias: cst.ImportAlias, binds_torch: Callable[[cst.ImportAlias], bool]
) -> Iterator[_Piece]:
    old = name_of(alias)
    new = names.new_module(old)
    if new == old:
        yield _Piece(None, alias)
    elif old == "torch.backends.cudnn":
        # muDNN's module is an attribute of torch.backends, and documented as that.
        if alias.asname is not None:
            yield _Piece("torch.backends", alias.with_changes(name=cst.Name("mudnn")))
        else:
            yield _Piece(None, alias.with_changes(name=dotted("torch.backends")))
    elif alias.asname is not None:
        yield _Piece(None, alias.with_changes(name=dotted(new)))
    else:
        if not binds_torch(alias):
            yield _Piece(None, alias.with_changes(name=cst.Name("torch")))
        yield _Piece(None, alias.with_changes(name=dotted(new)))


def new_import_from(
    node: cst.ImportFrom, bound: Callable[[cst.ImportAlias, str], str], moves_neutral: bool
) -> Statements:
    """`from torch.cuda import …` and its kind.

    Parameters:
        bound: the name that a name is bound to, given its new name.
        moves_neutral: BuildExtension, which is for C++ as well, comes from torch_musa.
    """
    if node.module is None or node.relative:
        return node
    module = helpers.get_full_name_for_node_or_raise(node.module)
    if isinstance(node.names, cst.ImportStar):
        new = names.new_module(module)
        return node.with_changes(module=dotted(new)) if new != module else node
    pieces = [_from_piece(module, alias, bound, moves_neutral) for alias in node.names]
    return _written(node, pieces)


def _from_piece(
    module: str,
    alias: cst.ImportAlias,
    bound: Callable[[cst.ImportAlias, str], str],
    moves_neutral: bool,
) -> _Piece:
    new_module, name = new_place(module, name_of(alias), moves_neutral)
    if (new_module, name) == (module, name_of(alias)):
        return _Piece(module, alias)
    wanted = alias.evaluated_alias or bound(alias, name)
    asname = alias.asname
    if asname is None and wanted != name:
        asname = cst.AsName(cst.Name(wanted))
    return _Piece(new_module, alias.with_changes(name=cst.Name(name), asname=asname))


def new_place(module: str, name: str, moves_neutral: bool = True) -> tuple[str, str]:
    """Where a name of a module comes from, and what it is called there."""
    path = f"{module}.{name}"
    if module == names.EXTENSION_MODULE:
        is_left = name in names.NEUTRAL_EXTENSION_NAMES and not moves_neutral
        if name in names.EXTENSION_NAMES and not is_left:
            return names.NEW_EXTENSION_MODULE, names.EXTENSION_NAMES[name]
        return module, name
    if names.is_without(path) or not names.is_known_module(module):
        return module, name
    whole = f"{names.new_module(module)}.{names.ATTRIBUTES.get(path, name)}"
    new_module, _, new_name = whole.rpartition(".")
    return new_module, new_name


def _written(node: cst.Import | cst.ImportFrom, pieces: list[_Piece]) -> Statements:
    """The names in one statement for each module; a single one keeps the layout."""
    by_module: dict[str | None, list[cst.ImportAlias]] = {}
    for piece in pieces:
        group = by_module.setdefault(piece.module, [])
        new = name_of(piece.alias), piece.alias.evaluated_alias
        if all(new != (name_of(alias), alias.evaluated_alias) for alias in group):
            group.append(piece.alias)
    groups = list(by_module.items())
    old = None
    if isinstance(node, cst.ImportFrom) and node.module is not None:
        old = helpers.get_full_name_for_node_or_raise(node.module)
    if len(groups) == 1 and isinstance(node, cst.Import) == (groups[0][0] is None):
        module, aliases = groups[0]
        changed: dict[str, object] = {"names": _like(node.names, aliases)}
        if module is not None and module != old:
            changed["module"] = dotted(module)
        return node.with_changes(**changed)
    statements = [_statement(module, _comma_separated(aliases)) for module, aliases in groups]
    last = statements[-1].with_changes(semicolon=node.semicolon)
    whole = [each.with_changes(semicolon=SEMICOLON) for each in statements[:-1]]
    return cst.FlattenSentinel([*whole, last]) if whole else last


def _statement(module: str | None, aliases: list[cst.ImportAlias]) -> cst.Import | cst.ImportFrom:
    if module is None:
        return cst.Import(aliases)
    return cst.ImportFrom(dotted(module), aliases)


def _like(old: Iterable[cst.ImportAlias] | cst.ImportStar, new: list[cst.ImportAlias]) -> object:
    """The commas and line ends that the names had, where they are as many."""
    if isinstance(old, cst.ImportStar):
        return old
    was = list(old)
    return new if len(was) == len(new) else _comma_separated(new)


def _comma_separated(aliases: list[cst.ImportAlias]) -> list[cst.ImportAlias]:
    return [
        *(alias.with_changes(comma=COMMA) for alias in aliases[:-1]),
        aliases[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT),
    ]


def missing_of_import(node: cst.Import | cst.ImportFrom) -> Iterator[str]:
    """The imported paths of which torch_musa has no counterpart."""
    if isinstance(node, cst.Import):
        paths = [name_of(alias) for alias in node.names]
        yield from (path for path in paths if _is_missing_module(path))
        return
    if node.module is None or node.relative:
        return
    module = helpers.get_full_name_for_node_or_raise(node.module)
    if _is_missing_module(module):
        yield module
    elif not isinstance(node.names, cst.ImportStar):
        paths = [f"{module}.{name_of(alias)}" for alias in node.names]
        yield from (path for path in paths if names.is_without(path))


def _is_missing_module(path: str) -> bool:
    return names.is_without(path) or not names.is_known_module(path)
