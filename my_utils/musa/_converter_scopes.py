"""Resolves a name of a Python source through imports and plain assignments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import libcst as cst
from libcst import helpers
from libcst.metadata import (
    Assignment,
    ClassScope,
    ImportAssignment,
    QualifiedNameSource,
    Scope,
)
from libcst.metadata.scope_provider import BaseAssignment

from ._converter_names import new_module

# What a name that nothing binds stands for.
UNBOUND = {"Backend": "torch.distributed.Backend"}


class Names:
    """The scopes of one module.

    Parameters:
        scopes, parents: the metadata of ScopeProvider and ParentNodeProvider.
    """

    def __init__(
        self,
        scopes: Mapping[cst.CSTNode, Scope | None],
        parents: Mapping[cst.CSTNode, cst.CSTNode],
    ) -> None:
        self._scopes = scopes
        self._parents = parents
        self._resolving: set[BaseAssignment] = set()

    def scope(self, node: cst.CSTNode) -> Scope | None:
        return self._scopes.get(node)

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        return self._parents.get(node)

    def paths(self, node: cst.CSTNode) -> set[str]:
        """The dotted paths from an import to a name or attribute; none for what is the source's.

        `torch` and `Backend` mean torch's where nothing says otherwise, as after
        `from lib import *`.
        """
        path = helpers.get_full_name_for_node(node)
        root = root_name(node)
        if path is None or root is None:
            return set()
        scope = self._scopes.get(root)
        assignments = list(scope[root.value]) if scope is not None else []
        if not assignments:
            path = UNBOUND.get(root.value, root.value) + path[len(root.value) :]
            return {path} if path.startswith("torch.") else set()
        return {found for each in assignments for found in self._brought(each, root.value, path)}

    def _brought(self, assignment: BaseAssignment, root: str, path: str) -> Iterator[str]:
        """A path that begins with a name that an import or `name = torch.cuda` binds."""
        if isinstance(assignment, ImportAssignment):
            for name in assignment.get_qualified_names_for(path):
                if name.source is QualifiedNameSource.IMPORT:
                    yield name.name
            return
        value = self._assigned(assignment)
        if value is None or assignment in self._resolving:
            return
        self._resolving.add(assignment)
        try:
            yield from (found + path[len(root) :] for found in self.paths(value))
        finally:
            self._resolving.discard(assignment)

    def _assigned(self, assignment: BaseAssignment) -> cst.CSTNode | None:
        """The right side of `name = a.b.c`."""
        if not isinstance(assignment, Assignment):
            return None
        target = self._parents.get(assignment.node)
        statement = self._parents.get(target) if target is not None else None
        is_plain = isinstance(target, cst.AssignTarget) and isinstance(statement, cst.Assign)
        if not is_plain or not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
            return None
        value = statement.value
        return value if isinstance(value, cst.Attribute | cst.Name) else None

    def uses(self, alias: cst.ImportAlias, kept: Iterable[str]) -> list[cst.Name] | None:
        """The names that this import alone binds; None if they cannot be renamed with it."""
        name = alias.evaluated_name.split(".")[0]
        statement = self._parents.get(alias)
        scope = None if statement is None else self._scopes.get(statement)
        if scope is None or isinstance(scope, ClassScope) or name in kept:
            return None
        found = []
        for assignment in scope[name]:
            if not isinstance(assignment, ImportAssignment) or assignment.scope is not scope:
                return None
            if not self._is_same(assignment, alias):
                return None
            for access in assignment.references:
                used = root_name(access.node)
                if used is None or self._parents.get(used) is None:
                    return None  # in an annotation that is a string
                found.append(used)
        return found

    def _is_same(self, assignment: ImportAssignment, alias: cst.ImportAlias) -> bool:
        statement = self._parents.get(alias)
        other = assignment.node
        if not isinstance(statement, cst.ImportFrom) or not isinstance(other, cst.ImportFrom):
            return False
        return _module(statement) == _module(other)

    def is_free(self, name: str) -> bool:
        """Whether no scope of the module binds a name."""
        scopes = {scope for scope in self._scopes.values() if scope is not None}
        return not any(name in scope.assignments for scope in scopes)

    def binds_torch(self, statement: cst.Import, alias: cst.ImportAlias) -> bool:
        """Whether another import of the same scope, above, binds `torch` as well."""
        scope = self._scopes.get(statement)
        if scope is None:
            return False
        above = list(statement.names[: list(statement.names).index(alias)])
        for assignment in scope["torch"]:
            other = assignment.node if isinstance(assignment, ImportAssignment) else None
            if other is statement or not isinstance(other, cst.Import):
                continue
            if assignment.scope is scope and self._is_above(other, statement):
                above.extend(other.names)
        return any(_stays_torch(each) for each in above)

    def _is_above(self, one: cst.CSTNode, other: cst.CSTNode) -> bool:
        """Whether one statement is before another in the same block."""
        line, other_line = self._parents.get(one), self._parents.get(other)
        if line is other_line:
            body = getattr(line, "body", ())
        else:
            block = self._parents.get(line) if line is not None else None
            if other_line is None or block is not self._parents.get(other_line):
                return False
            one, other, body = line, other_line, getattr(block, "body", ())  # type: ignore[assignment]
        places = {id(each): place for place, each in enumerate(body)}
        return places.get(id(one), 0) < places.get(id(other), -1)


def root_name(node: cst.CSTNode) -> cst.Name | None:
    """The first name of a.b.c."""
    while isinstance(node, cst.Attribute):
        node = node.value
    return node if isinstance(node, cst.Name) else None


def _module(statement: cst.ImportFrom) -> str:
    dots = "." * len(statement.relative)
    module = statement.module
    return dots + (helpers.get_full_name_for_node_or_raise(module) if module else "")


def _stays_torch(alias: cst.ImportAlias) -> bool:
    """Whether an import binds `torch`, and does so still once it is converted."""
    name = helpers.get_full_name_for_node_or_raise(alias.name)
    return alias.asname is None and name.split(".")[0] == "torch" and new_module(name) == name
