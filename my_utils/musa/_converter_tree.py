"""One Python source, rewritten with libcst: comments, layout, quotes and line ends stay.

>>> convert(b"import torch\\nx = x.cuda()  # to cuda\\n", is_launched=False).data
b'import torch\\nx = x.musa()  # to cuda\\n'
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst
from libcst import helpers
from libcst.metadata import MetadataWrapper, QualifiedNameProvider, QualifiedNameSource

from . import _converter_names as names

# Without one of these nothing in a source is rewritten.
WORDS = (b"cuda", b"CUDA", b"nccl", b"NCCL", b"cudnn")
IMPORT = "torch_musa"


@dataclass(frozen=True)
class Converted:
    """A source afterwards, and how many places of it are new."""

    data: bytes
    changes: int


def convert(data: bytes, is_launched: bool) -> Converted:
    """Rewrites a source; the script that is launched imports torch_musa, too.

    Raises libcst.ParserSyntaxError, SyntaxError or ValueError for what is no Python.
    """
    if not is_launched and not any(word in data for word in WORDS):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(data)
        return Converted(data, 0)
    wrapper = MetadataWrapper(cst.parse_module(data), unsafe_skip_copy=True)
    converter = _Converter()
    module = wrapper.visit(converter)
    changes = converter.changes
    if is_launched and not _has_import(module):
        module = _with_import(module)
        changes += 1
    return Converted(module.bytes if changes else data, changes)


class _Converter(cst.CSTTransformer):
    METADATA_DEPENDENCIES = (QualifiedNameProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0
        self.scopes: list[bool] = []  # of what is open here: is it a class
        self.bare: set[cst.Name] = set()  # names that stand for nothing by themselves

    # --- what a name leads to ---

    def imported(self, node: cst.CSTNode) -> set[str]:
        """The dotted paths that imports give to a node; `torch` means torch if nothing says no."""
        found = self.get_metadata(QualifiedNameProvider, node, set())
        if not found:
            path = helpers.get_full_name_for_node(node) or ""
            return {path} if path.startswith("torch.") else set()
        return {each.name for each in found if each.source is QualifiedNameSource.IMPORT}

    def renamed(self, node: cst.Name) -> cst.Name:
        """The new name of what an import brought, by where it came from."""
        for path in self.imported(node):
            new = names.PATHS.get(path)
            if new is not None and path.endswith("." + node.value):
                return node.with_changes(value=new)
        return node

    def counted(self, old: cst.CSTNode, new: cst.CSTNode) -> None:
        self.changes += not old.deep_equals(new)

    # --- names and attributes ---

    def visit_Attribute(self, node: cst.Attribute) -> None:
        self.bare.add(node.attr)

    def visit_Arg(self, node: cst.Arg) -> None:
        if node.keyword is not None:
            self.bare.add(node.keyword)

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:
        new = original_node if original_node in self.bare else self.renamed(original_node)
        if new is original_node:
            return updated_node
        self.changes += 1
        return new

    def leave_Attribute(
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.Attribute:
        old = original_node.attr.value
        paths = self.imported(original_node)
        new = old
        for path in paths:
            new = names.PATHS.get(path, new)
        if not paths or any(path.startswith("torch.") for path in paths):
            new = names.FIELDS.get(old, new)
        if new == updated_node.attr.value:
            return updated_node
        self.changes += 1
        return updated_node.with_changes(attr=cst.Name(new))

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        """x.cuda() of an object; what imported modules call so is left, but torch's."""
        function = original_node.func
        if not isinstance(function, cst.Attribute) or function.attr.value not in names.METHODS:
            return updated_node
        if any(not path.startswith("torch.") for path in self.imported(function)):
            return updated_node
        new = cst.ensure_type(updated_node.func, cst.Attribute)
        if new.attr.value != function.attr.value:
            return updated_node
        self.changes += 1
        attr = cst.Name(names.METHODS[function.attr.value])
        return updated_node.with_changes(func=new.with_changes(attr=attr))

    # --- methods that override those of modules ---

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self.scopes.append(True)

    def leave_ClassDef(
        self, original_node: cst.ClassDef, updated_node: cst.ClassDef
    ) -> cst.ClassDef:
        self.scopes.pop()
        return updated_node

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self.scopes.append(False)

    def leave_FunctionDef(
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef:
        self.scopes.pop()
        is_method = bool(self.scopes) and self.scopes[-1]
        new = (names.METHODS | names.FIELDS).get(original_node.name.value)
        if not is_method or new is None:
            return updated_node
        self.changes += 1
        return updated_node.with_changes(name=cst.Name(new))

    # --- strings ---

    def visit_Expr(self, node: cst.Expr) -> bool:
        """A string that stands alone is a docstring or a comment."""
        return not isinstance(node.value, cst.SimpleString | cst.ConcatenatedString)

    def visit_ConcatenatedString(self, node: cst.ConcatenatedString) -> bool:
        return False  # prose in pieces

    def leave_SimpleString(
        self, original_node: cst.SimpleString, updated_node: cst.SimpleString
    ) -> cst.SimpleString:
        if "b" in updated_node.prefix:
            return updated_node
        begin = len(updated_node.prefix) + len(updated_node.quote)
        end = len(updated_node.value) - len(updated_node.quote)
        new = names.new_string(updated_node.value[begin:end])
        if new is None:
            return updated_node
        self.changes += 1
        value = updated_node.value[:begin] + new + updated_node.value[end:]
        return updated_node.with_changes(value=value)

    def leave_FormattedString(
        self, original_node: cst.FormattedString, updated_node: cst.FormattedString
    ) -> cst.FormattedString:
        """f"cuda:{rank}": the text, one expression, and nothing after it."""
        parts = updated_node.parts
        if len(parts) != 2 or not isinstance(parts[1], cst.FormattedStringExpression):
            return updated_node
        text = parts[0]
        if not isinstance(text, cst.FormattedStringText) or text.value != "cuda:":
            return updated_node
        self.changes += 1
        return updated_node.with_changes(parts=(text.with_changes(value="musa:"), parts[1]))

    # --- imports ---

    def visit_Import(self, node: cst.Import) -> bool:
        return False

    def leave_Import(self, original_node: cst.Import, updated_node: cst.Import) -> cst.Import:
        new = updated_node.with_changes(
            names=[alias.with_changes(name=_dotted(alias.name)) for alias in updated_node.names]
        )
        self.counted(original_node, new)
        return new

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False

    def leave_ImportFrom(
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> cst.ImportFrom | cst.FlattenSentinel[cst.BaseSmallStatement]:
        module = updated_node.module
        if module is None or updated_node.relative:
            return updated_node
        path = helpers.get_full_name_for_node_or_raise(module)
        if path == names.EXTENSION_MODULE:
            return self.split_extension_import(updated_node)
        new = updated_node.with_changes(module=_dotted(module))
        if not isinstance(new.names, cst.ImportStar):
            new = new.with_changes(names=[_alias(path, alias) for alias in new.names])
        self.counted(original_node, new)
        return new

    def split_extension_import(
        self, node: cst.ImportFrom
    ) -> cst.ImportFrom | cst.FlattenSentinel[cst.BaseSmallStatement]:
        """CUDAExtension comes from a module of its own, and BuildExtension with it."""
        if isinstance(node.names, cst.ImportStar):
            return node
        aliases = list(node.names)
        if all(_name(alias) != "CUDAExtension" for alias in aliases):
            return node
        self.changes += 1
        moved = [alias for alias in aliases if _name(alias) in names.EXTENSION_NAMES]
        kept = [alias for alias in aliases if _name(alias) not in names.EXTENSION_NAMES]
        new = [
            alias.with_changes(name=cst.Name(names.EXTENSION_NAMES[_name(alias)]))
            for alias in moved
        ]
        extension = node.with_changes(
            module=helpers.parse_template_expression(names.NEW_EXTENSION_MODULE),
            names=_comma_separated(new) if kept else new,
        )
        if not kept:
            return extension
        parts = [node.with_changes(names=_comma_separated(kept)), extension]
        return cst.FlattenSentinel([parts[0].with_changes(semicolon=SEMICOLON), parts[1]])


SEMICOLON = cst.Semicolon(whitespace_after=cst.SimpleWhitespace(" "))


def _name(alias: cst.ImportAlias) -> str:
    return helpers.get_full_name_for_node_or_raise(alias.name)


def _comma_separated(aliases: Sequence[cst.ImportAlias]) -> list[cst.ImportAlias]:
    return [
        *(alias.with_changes(comma=COMMA) for alias in aliases[:-1]),
        aliases[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT),
    ]


COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


def _dotted(node: cst.Attribute | cst.Name) -> cst.Attribute | cst.Name:
    """A module's path with its parts renamed."""
    path = helpers.get_full_name_for_node_or_raise(node)
    new = names.new_path(path)
    if new == path:
        return node
    found = helpers.parse_template_expression(new)
    assert isinstance(found, cst.Attribute | cst.Name)
    return found


def _alias(module: str, alias: cst.ImportAlias) -> cst.ImportAlias:
    new = names.PATHS.get(f"{module}.{_name(alias)}")
    return alias if new is None else alias.with_changes(name=cst.Name(new))


# --- import torch_musa ---


def _statements(module: cst.Module) -> list[cst.BaseSmallStatement]:
    return [
        small
        for line in module.body
        if isinstance(line, cst.SimpleStatementLine)
        for small in line.body
    ]


def _has_import(module: cst.Module) -> bool:
    return any(
        isinstance(small, cst.Import) and any(_name(alias) == IMPORT for alias in small.names)
        for small in _statements(module)
    )


def _with_import(module: cst.Module) -> cst.Module:
    """After the docstring and the imports from __future__, before all else."""
    body = list(module.body)
    at = 0
    if module.get_docstring() is not None:
        at = 1
    for number, line in enumerate(body):
        if isinstance(line, cst.SimpleStatementLine) and any(map(_is_future, line.body)):
            at = number + 1
    line = cst.SimpleStatementLine([cst.Import([cst.ImportAlias(cst.Name(IMPORT))])])
    if at == 0 and body:
        first = body[0]
        if isinstance(first, cst.SimpleStatementLine | cst.BaseCompoundStatement):
            line = line.with_changes(leading_lines=first.leading_lines)
            body[0] = first.with_changes(leading_lines=())
    return module.with_changes(body=[*body[:at], line, *body[at:]], has_trailing_newline=True)


def _is_future(small: cst.BaseSmallStatement) -> bool:
    return (
        isinstance(small, cst.ImportFrom)
        and isinstance(small.module, cst.Name)
        and small.module.value == "__future__"
    )
