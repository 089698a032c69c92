"""What the project has grown to: `make size`.

Lines by package and tree, the longest files, and five measures of how finely the Python is cut:

- functions in 1,000 lines;
- functions that are used once: their name is read in one place of the package, tests apart;
- the same with a body of fewer than six lines;
- modules that one module imports, and how many of these have under 100 lines in its own package;
- private modules with `__all__`.

And three of what a newcomer has to read: `tools/reach.py` says what they count.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter, defaultdict
from pathlib import Path

from tools.reach import COMMANDS, circles, code_lines, reached

ROOT = Path(__file__).resolve().parents[1]
SHORT = 6  # lines of a body
SMALL = 100  # lines of a module
LONGEST = 10


class Python:
    """The Python files of a package, parsed. root: the folder that holds it."""

    def __init__(self, root: Path, package: str) -> None:
        self.lines: dict[str, int] = {}  # by the name of the module
        self.functions: list[tuple[str, int]] = []  # name, lines of the body
        self.uses: Counter[str] = Counter()  # of names, as a name or an attribute
        self.importers: defaultdict[str, set[str]] = defaultdict(set)
        self.with_all: set[str] = set()
        trees = {}
        for path in sorted((root / package).rglob("*.py")):
            module = ".".join(path.relative_to(root).with_suffix("").parts)
            text = path.read_text(encoding="utf-8")
            trees[module] = ast.parse(text)
            self.lines[module] = text.count("\n")
        for module, tree in trees.items():
            for node in ast.walk(tree):
                self._note(module, node)

    def _note(self, module: str, node: ast.AST) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self.functions.append((node.name, _body_lines(node)))
        elif isinstance(node, ast.Name):
            self.uses[node.id] += 1
            if node.id == "__all__" and not module.endswith("__init__"):
                self.with_all.add(module)
        elif isinstance(node, ast.Attribute):
            self.uses[node.attr] += 1
        elif isinstance(node, ast.ImportFrom):
            for target in self._targets(module, node):
                self.importers[target].add(module)

    def _targets(self, module: str, node: ast.ImportFrom) -> set[str]:
        parts = module.split(".")[: -node.level] if node.level else []
        base = ".".join([*parts, *filter(None, [node.module])])
        inner = {f"{base}.{alias.name}" for alias in node.names}
        return {name for name in inner if name in self.lines} or ({base} & self.lines.keys())

    def measures(self) -> dict[str, str]:
        named = [one for one in self.functions if not one[0].startswith("__")]
        once = [lines for name, lines in named if self.uses[name] == 1]
        short = [lines for lines in once if lines < SHORT]
        alone = [module for module, importers in self.importers.items() if len(importers) == 1]
        inside = [
            module
            for module in alone
            if self.lines[module] < SMALL
            and module.rpartition(".")[0] == next(iter(self.importers[module])).rpartition(".")[0]
        ]
        count = len(self.functions)
        return {
            "functions in 1,000 lines": f"{1000 * count / sum(self.lines.values()):.0f}",
            "functions that are used once": f"{len(once) / count:.1%}",
            f"the same under {SHORT} lines": f"{len(short) / count:.1%}",
            "modules that one module imports": f"{len(alone)} of {len(self.lines)}; "
            f"{len(inside)} of them under {SMALL} lines in its own package",
            "modules with __all__, packages apart": str(len(self.with_all)),
        }


def _body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Without the docstring."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return node.end_lineno - body[0].lineno + 1 if body and node.end_lineno else 0


def lines_of(folder: Path, *suffixes: str) -> tuple[int, int]:
    """Lines and files."""
    files = [path for suffix in suffixes for path in folder.rglob(f"*{suffix}")]
    return sum(path.read_bytes().count(b"\n") for path in files), len(files)


def main() -> int:
    print(f"{'tree':<28}{'lines':>8}{'files':>7}")
    for name, suffixes in (
        ("my_utils", [".py"]), ("csrc/engine", [".c", ".h", ".cu"]),
        ("csrc/engine/tests", [".c", ".h"]),
        ("csrc/binding", [".c", ".h"]), ("tests", [".py"]), ("docs", [".md", ".rst"]),
    ):  # fmt: skip
        lines, files = lines_of(ROOT / name, *suffixes)
        print(f"{name:<28}{lines:>8,}{files:>7}")
    print(f"\n{'package':<28}{'lines':>8}{'files':>7}")
    package = ROOT / "my_utils"
    for folder in sorted([*package.glob("*/"), *package.glob("*/*/")]):
        lines, files = lines_of(folder, ".py")
        if files:
            indented = "  " * (folder.parent != package) + folder.name
            print(f"{indented:<28}{lines:>8,}{files:>7}")
    python = Python(ROOT, "my_utils")
    print()
    for name, value in python.measures().items():
        print(f"{name:<38}{value}")
    print("\nlines of Python that a command reaches by imports, lazy ones too")
    for name, module in COMMANDS.items():
        lines = sum(reached(ROOT, "my_utils", module).values())
        print(f"my_utils {name:<29}{lines:,}")
    print(f"{'lines of code alone':<38}{code_lines(package.rglob('*.py')):,}")
    found = [circle for tree in ("engine", "binding") for circle in circles(ROOT / "csrc" / tree)]
    print(f"{'circles of C files':<38}{len(found)}")
    for circle in found:
        print(f"  {', '.join(circle)}")
    print("\nthe longest modules")
    for module, lines in Counter(python.lines).most_common(LONGEST):
        print(f"{module:<44}{lines:>6,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
