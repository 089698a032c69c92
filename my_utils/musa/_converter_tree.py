"""One Python source, rewritten with libcst: comments, layout, quotes and line ends stay.

>>> convert(b"import torch\\nx = x.cuda()  # to cuda\\n", is_launched=False).data
b'import torch\\nx = x.musa()  # to cuda\\n'
>>> convert(b"import torch\\ntorch.cuda.nvtx.mark('x')\\n", is_launched=False).notes
('line 2: torch_musa 2.7.1 has no counterpart of torch.cuda.nvtx: left',)
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import libcst as cst
from libcst import helpers
from libcst.metadata import (
    ClassScope,
    MetadataWrapper,
    ParentNodeProvider,
    PositionProvider,
    ScopeProvider,
)

from . import _converter_imports as imports, _converter_names as names
from ._converter_launch import with_import
from ._converter_scopes import Names

# Without one of these nothing in a source is rewritten.
WORDS = (b"cuda", b"CUDA", b"nccl", b"NCCL", b"cudnn", b"nvcc", b"cpp_extension")
MODULE_FUNCTIONS = {"importlib.import_module", "importlib.util.find_spec", "pkgutil.resolve_name"}


@dataclass(frozen=True)
class Converted:
    """A source afterwards, how many places of it are new, and what to look at by hand."""

    data: bytes
    changes: int
    notes: tuple[str, ...] = ()


def convert(
    data: bytes,
    is_launched: bool,
    kept: Collection[str] = (),
    own_fields: Collection[str] = (),
) -> Converted:
    """Rewrites a source; the script that is launched imports torch_musa, too.

    Parameters:
        kept: names that other files take from this one; they stay bound.
        own_fields: attributes that mean something else in this project, such as an option
            `--is_cuda`; they stay, and a note says so.

    Raises libcst.ParserSyntaxError, SyntaxError or ValueError if it is not Python.
    """
    if not is_launched and not any(word in data for word in WORDS):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(data)
        return Converted(data, 0)
    wrapper = MetadataWrapper(cst.parse_module(data), unsafe_skip_copy=True)
    known = Names(wrapper.resolve(ScopeProvider), wrapper.resolve(ParentNodeProvider))
    converter = _Converter(known, kept, own_fields)
    module = wrapper.visit(converter)
    changes = converter.changes
    if is_launched or converter.needed:
        module, added = with_import(module, is_launched, sorted(converter.needed))
        changes += added
    notes = tuple(dict.fromkeys(f"line {line}: {text}" for line, text in sorted(converter.notes)))
    return Converted(module.bytes if changes else data, changes, notes)


class _Converter(cst.CSTTransformer):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, known: Names, kept: Collection[str], own_fields: Collection[str]) -> None:
        super().__init__()
        self.known = known
        self.kept = set(kept)
        self.own_fields = own_fields
        self.changes = 0
        self.notes: list[tuple[int, str]] = []
        self.needed: set[str] = set()  # modules that what is written now needs
        self.bare: set[cst.Name] = set()  # names that stand for nothing by themselves
        self.left: set[cst.CSTNode] = set()  # parts of what has no counterpart
        self.renamed: dict[cst.Name, str] = {}  # uses of what an import binds
        self.module_strings: set[cst.CSTNode] = set()
        self.moves_neutral = True

    def note(self, node: cst.CSTNode, text: str) -> None:
        self.notes.append((self.get_metadata(PositionProvider, node).start.line, text))

    def note_missing(self, node: cst.CSTNode, path: str) -> None:
        self.note(node, f"{names.VERSION} has no counterpart of {path}: left")

    def counted(
        self, old: cst.Import | cst.ImportFrom, new: imports.Statements
    ) -> imports.Statements:
        for path in imports.missing_of_import(old):
            self.note_missing(old, path)
        is_same = isinstance(new, cst.CSTNode) and old.deep_equals(new)
        self.changes += not is_same
        return new

    # --- before all else: which imported names get their new ones ---

    def visit_Module(self, node: cst.Module) -> None:
        self.kept |= _exported(node)
        found = _Imports()
        node.visit(found)
        self.moves_neutral = "CppExtension" not in found.extension_names or any(
            name.startswith(("CUDA", "CUDNN")) for name in found.extension_names
        )
        for statement in found.statements:
            self.plan(statement)

    def plan(self, statement: cst.ImportFrom) -> None:
        """Renames what a statement binds wherever it is used, or nowhere."""
        if statement.module is None or isinstance(statement.names, cst.ImportStar):
            return
        module = helpers.get_full_name_for_node_or_raise(statement.module)
        for alias in statement.names:
            old = imports.name_of(alias)
            _, new = imports.new_place(module, old, self.moves_neutral)
            if alias.asname is not None or new == old or not self.known.is_free(new):
                continue
            uses = self.known.uses(alias, self.kept)
            if uses is not None:
                self.renamed.update(dict.fromkeys(uses, new))
                self.renamed[cst.ensure_type(alias.name, cst.Name)] = new

    # --- names and attributes ---

    def visit_Attribute(self, node: cst.Attribute) -> None:
        self.bare.add(node.attr)
        if node in self.left:
            self.left.add(node.value)
            return
        paths = self.known.paths(node)
        missing = sorted(path for path in paths if path in names.WITHOUT)
        if missing:
            self.note_missing(node, missing[0])
            self.left.add(node)
            self.left.add(node.value)
        for path in paths:
            self.note_doubtful(node, path)

    def note_doubtful(self, node: cst.Attribute, path: str) -> None:
        if path.startswith("torch._C._cuda"):
            self.note_missing(node, path)
        module, _, name = path.rpartition(".")
        is_set = isinstance(self.known.parent(node), cst.AssignTarget)
        if module == "torch.backends.cudnn" and name not in names.MUDNN_NAMES and not is_set:
            self.note(node, f"{names.VERSION} has torch.backends.mudnn without {name!r}")

    def visit_Arg(self, node: cst.Arg) -> None:
        if node.keyword is not None:
            self.bare.add(node.keyword)

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        if original_node in self.bare or original_node in self.left:
            return updated_node
        new = self.renamed.get(original_node)
        if new is None:
            return updated_node
        self.changes += 1
        return updated_node.with_changes(value=new)

    def leave_Attribute(
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.BaseExpression:
        if original_node in self.left:
            return updated_node
        old = original_node.attr.value
        paths = self.known.paths(original_node)
        for path in paths:
            module, _, name = path.rpartition(".")
            if module == names.EXTENSION_MODULE and self.is_moved(name) and len(paths) == 1:
                self.changes += 1
                self.needed.add(names.NEW_EXTENSION_MODULE)
                whole = f"{names.NEW_EXTENSION_MODULE}.{names.EXTENSION_NAMES[name]}"
                return imports.dotted(whole).with_changes(
                    lpar=updated_node.lpar, rpar=updated_node.rpar
                )
        tails = {names.ATTRIBUTES.get(path, old) for path in paths} or {old}
        if len(tails) > 1:
            self.note(original_node, f"is one of {', '.join(sorted(paths))}: left")
            return updated_node
        (tail,) = tails
        if not paths or any(path.startswith("torch.") for path in paths):
            tail = self.field(original_node, tail)
        if tail == updated_node.attr.value:
            is_torchs = any(path.startswith("torch.") for path in paths)
            if old in names.TELLING and not is_torchs:
                self.note(original_node, f"{old} comes from another file, perhaps torch's: left")
            return updated_node
        self.changes += 1
        return _with_tail(updated_node, tail)

    def is_moved(self, name: str) -> bool:
        is_neutral = name in names.NEUTRAL_EXTENSION_NAMES
        return name in names.EXTENSION_NAMES and (self.moves_neutral or not is_neutral)

    def field(self, node: cst.Attribute, name: str) -> str:
        """The new name of a member of tensors, unless it is one of the project's own."""
        new = names.FIELDS.get(name)
        if new is None:
            return name
        if name in self.own_fields:
            self.note(node, f"{name} is an attribute of this project, or of a tensor: left")
            return name
        return new

    def visit_Call(self, node: cst.Call) -> None:
        paths = self.known.paths(node.func)
        is_import = isinstance(node.func, cst.Name) and node.func.value == "__import__"
        if node.args and (is_import or paths & MODULE_FUNCTIONS):
            self.module_strings.add(node.args[0].value)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        """x.cuda() of an object; what imported modules call so is left, but torch's."""
        function = original_node.func
        paths = self.known.paths(function)
        if paths and paths <= names.KEYWORD_FUNCTIONS:
            return self.with_keywords(updated_node)
        if not isinstance(function, cst.Attribute) or function.attr.value not in names.METHODS:
            return updated_node
        if any(not path.startswith("torch.") for path in paths):
            return updated_node
        new = cst.ensure_type(updated_node.func, cst.Attribute)
        if new.attr.value != function.attr.value:
            return updated_node
        self.changes += 1
        attr = cst.Name(names.METHODS[function.attr.value])
        return updated_node.with_changes(func=new.with_changes(attr=attr))

    def with_keywords(self, call: cst.Call) -> cst.Call:
        args = []
        for arg in call.args:
            new = names.KEYWORDS.get(arg.keyword.value) if arg.keyword is not None else None
            if new is not None:
                self.changes += 1
                arg = arg.with_changes(keyword=cst.Name(new))
            args.append(arg)
        return call.with_changes(args=args)

    # --- methods that override those of modules ---

    def leave_FunctionDef(
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef:
        is_method = isinstance(self.known.scope(original_node), ClassScope)
        old = original_node.name.value
        new = (names.METHODS | names.FIELDS).get(old)
        if not is_method or new is None or old in self.own_fields:
            return updated_node
        self.changes += 1
        return updated_node.with_changes(name=cst.Name(new))

    # --- strings ---

    def visit_Assign(self, node: cst.Assign) -> bool:
        """`__all__` names what the module binds, which stays bound."""
        targets = (target.target for target in node.targets)
        return not any(isinstance(each, cst.Name) and each.value == "__all__" for each in targets)

    def visit_AugAssign(self, node: cst.AugAssign) -> bool:
        return not (isinstance(node.target, cst.Name) and node.target.value == "__all__")

    def visit_Expr(self, node: cst.Expr) -> bool:
        """A string that is a whole statement is a docstring or a comment."""
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
        old = updated_node.value[begin:end]
        new = self.new_text(original_node, old)
        if new is None or new == old:
            return updated_node
        self.changes += 1
        value = updated_node.value[:begin] + new + updated_node.value[end:]
        return updated_node.with_changes(value=value)

    def new_text(self, node: cst.SimpleString, text: str) -> str | None:
        if names.TYPE.fullmatch(text) and names.is_without(text):
            self.note_missing(node, text)
        if node in self.module_strings and names.TYPE.fullmatch(text):
            return names.new_module(text)
        return names.new_string(text)

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

    def leave_Import(
        self, original_node: cst.Import, updated_node: cst.Import
    ) -> imports.Statements:
        return self.counted(
            original_node,
            imports.new_import(
                original_node, lambda alias: self.known.binds_torch(original_node, alias)
            ),
        )

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False

    def leave_ImportFrom(
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> imports.Statements:
        new = imports.new_import_from(original_node, self.bound, self.moves_neutral)
        return self.counted(original_node, new)

    def bound(self, alias: cst.ImportAlias, new: str) -> str:
        """What an import binds afterwards: its new name where all uses of the old one are known."""
        old = cst.ensure_type(alias.name, cst.Name)
        return self.renamed.get(old, old.value)


class _Imports(cst.CSTVisitor):
    """The `from … import` statements of a module, and what it takes of cpp_extension."""

    def __init__(self) -> None:
        super().__init__()
        self.statements: list[cst.ImportFrom] = []
        self.extension_names: set[str] = set()

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        if node.module is not None and not node.relative:
            self.statements.append(node)
            is_extension = helpers.get_full_name_for_node(node.module) == names.EXTENSION_MODULE
            if is_extension and not isinstance(node.names, cst.ImportStar):
                self.extension_names |= {imports.name_of(alias) for alias in node.names}
        return False

    def visit_Attribute(self, node: cst.Attribute) -> None:
        if node.attr.value in {*names.EXTENSION_NAMES, "CppExtension"}:
            self.extension_names.add(node.attr.value)


def _with_tail(node: cst.Attribute, tail: str) -> cst.Attribute:
    """value.tail instead of value.attr; a tail may have several parts."""
    *middle, last = tail.split(".")
    value = node.value
    for part in middle:
        value = cst.Attribute(value, cst.Name(part))
    return node.with_changes(value=value, attr=cst.Name(last))


def _exported(module: cst.Module) -> set[str]:
    """The strings of `__all__`."""
    found: set[str] = set()
    for line in module.body:
        small: Iterable[cst.BaseSmallStatement] = getattr(line, "body", ())
        if not isinstance(line, cst.SimpleStatementLine):
            continue
        for each in small:
            code = module.code_for_node(each)
            if code.startswith("__all__"):
                found |= _find_strings(code)
    return found


def _find_strings(code: str) -> set[str]:
    return {
        node.value
        for node in ast.walk(ast.parse(code.rstrip(";\n ")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
