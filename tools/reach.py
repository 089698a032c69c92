"""How much a reader of one command has to read, and which C files stand in circles.

Reach: the lines of all modules of the package that a command may import: at once, inside a
function, or by a string that is the name of a module. The `__init__` of a package counts with any
of its modules; what it loads lazily, by name or in a function, does not.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

COMMANDS = {"why": "cli.why", "live": "cli.live", "run": "run.command"}
# Files of one kernel for several instruction sets.
VARIANT = re.compile(r"_(avx2|avx512|neon|portable|scalar)$")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def reached(root: Path, package: str, first: str) -> dict[str, int]:
    """The modules that one of them reaches, with their lines. root: the folder that holds the
    package."""
    modules = {_name_of(path, root): path for path in (root / package).rglob("*.py")}
    found: dict[str, int] = {}
    left = [f"{package}.{first}"]
    while left:
        module = left.pop()
        if module in found:
            continue
        text = modules[module].read_text(encoding="utf-8")
        found[module] = text.count("\n")
        left.extend(_imports(module, ast.parse(text), modules))
    for module in [*found]:
        for parent in _parents(module):
            found.setdefault(parent, modules[parent].read_bytes().count(b"\n"))
    return found


def _name_of(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def _parents(module: str) -> Iterator[str]:
    while "." in module:
        module = module.rpartition(".")[0]
        yield module


def _imports(module: str, tree: ast.AST, modules: Mapping[str, Path]) -> Iterator[str]:
    """Of a package its own `__init__`, where a name of it is imported."""
    is_package = modules[module].name == "__init__.py"
    parts = module.split(".") if is_package else module.split(".")[:-1]
    for node in _run_nodes(tree, in_functions=not is_package):
        if isinstance(node, ast.ImportFrom):
            base = parts[: len(parts) + 1 - node.level] if node.level else []
            name = ".".join([*base, *filter(None, [node.module])])
            inner = [f"{name}.{alias.name}" for alias in node.names]
            yield from (one for one in [name, *inner] if one in modules and one != module)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.Constant) and not is_package and str(node.value) in modules:
            yield str(node.value)


def _run_nodes(tree: ast.AST, *, in_functions: bool) -> Iterator[ast.AST]:
    """Without what only a type checker reads."""
    left = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.FunctionDef) and not in_functions:
            continue
        yield node
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            left.extend(node.orelse)
        else:
            left.extend(ast.iter_child_nodes(node))


def code_lines(paths: Iterable[Path]) -> int:
    """Lines of Python that are no comment, docstring, import, nor blank."""
    return sum(_code_lines(path.read_text(encoding="utf-8")) for path in paths)


def _code_lines(text: str) -> int:
    lines = text.split("\n")
    kept = {at for at, line in enumerate(lines, 1) if line.strip() and line.strip()[0] != "#"}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Import, ast.ImportFrom)) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)  # a docstring
        ):
            kept.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(kept)


def circles(folder: Path) -> list[list[str]]:
    """C files that include one another, a .c and its .h taken as one, and variants of a kernel
    left out; each circle once."""
    names: dict[str, set[str]] = {}
    for path in [*folder.rglob("*.c"), *folder.rglob("*.h")]:
        name = str(path.relative_to(folder).with_suffix(""))
        if not VARIANT.search(name) and "tests" not in path.parts:
            text = path.read_text(encoding="utf-8")
            wanted = {target.removesuffix(".h") for target in INCLUDE.findall(text)}
            names.setdefault(name, set()).update(wanted - {name})
    reached = {name: _all_from(name, names) for name in names}
    found = {
        tuple(sorted(each for each in reached[name] if name in reached.get(each, ())))
        for name in names
        if name in reached[name]
    }
    return [list(circle) for circle in sorted(found)]


def _all_from(first: str, edges: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    left = [first]
    while left:
        for name in edges.get(left.pop(), ()):
            if name not in found:
                found.add(name)
                left.append(name)
    return found
