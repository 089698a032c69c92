"""What the files of a project need from each other, collected before any is rewritten."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field

from . import _converter_names as names

# Names that the converter changes where an import binds them.
BOUND = {path.rpartition(".")[2] for path in names.ATTRIBUTES} | set(names.EXTENSION_NAMES)
# Without one of these a file says nothing.
WORDS = [name.encode() for name in (*BOUND, "is_cuda", "is-cuda")]


@dataclass
class Said:
    """What files say together.

    `kept`: names that a file takes from another file, which must stay bound there.
    `own_fields`: attributes that are options, fields or keywords of the project's own.
    """

    kept: set[str] = field(default_factory=set)
    own_fields: set[str] = field(default_factory=set)

    def add(self, other: Said) -> None:
        self.kept |= other.kept
        self.own_fields |= other.own_fields


def said_by(data: bytes) -> Said:
    """What one source says; nothing if it is not Python.

    >>> said_by(b"from lib import cuda\\nparser.add_argument('--is-cuda')")
    Said(kept={'cuda'}, own_fields={'is_cuda'})
    """
    said = Said()
    if not any(word in data for word in WORDS):
        return said
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(data)
    except (SyntaxError, ValueError, RecursionError):
        return said
    _Reader(said).visit(tree)
    return said


class _Reader(ast.NodeVisitor):
    def __init__(self, said: Said) -> None:
        self.said = said
        self.modules: set[str] = set()  # names bound to modules of the project's own
        self.bound: set[str] = set()
        self.loaded: set[str] = set()
        self.has_star = False

    def visit_Module(self, node: ast.Module) -> None:
        self.generic_visit(node)
        if self.has_star:
            self.said.kept |= (self.loaded - self.bound) & BOUND

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            bound = alias.asname or alias.name.split(".")[0]
            self.bound.add(bound)
            if alias.name.split(".")[0] != "torch":
                self.modules.add(bound)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        is_torch = node.level == 0 and (node.module or "").split(".")[0] == "torch"
        for alias in node.names:
            self.bound.add(alias.asname or alias.name)
            if is_torch:
                continue
            self.modules.add(alias.asname or alias.name)
            self.has_star |= alias.name == "*"
            self.said.kept |= {alias.name} & BOUND

    def visit_Name(self, node: ast.Name) -> None:
        (self.loaded if isinstance(node.ctx, ast.Load) else self.bound).add(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name) and node.value.id in self.modules:
            self.said.kept |= {node.attr} & BOUND
        self.generic_visit(node)

    # --- attributes of the project's own ---

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for line in node.body:
            targets: Iterable[ast.expr] = getattr(line, "targets", [getattr(line, "target", None)])
            self.own(each.id for each in targets if isinstance(each, ast.Name))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        self.own(each.arg for each in node.keywords if each.arg is not None)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            options = [each.value for each in node.args if isinstance(each, ast.Constant)]
            self.own(str(each).lstrip("-").replace("-", "_") for each in options)
        self.generic_visit(node)

    def own(self, found: Iterable[str]) -> None:
        self.said.own_fields |= set(found) & set(names.FIELDS)
