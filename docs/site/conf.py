"""The site: the pages of docs/ and the reference out of the docstrings. `make site` builds it."""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

from sphinx.util import inspect

DOCS = Path(__file__).resolve().parent.parent
ROOT = DOCS.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import docstrings  # noqa: E402 - it stands beside this file

project = "my_utils"
author = "The my_utils maintainers"
release = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
version = release

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["site/*"]
myst_heading_anchors = 4
# Code blocks have … where something is left out.
suppress_warnings = ["misc.highlighting_failure"]

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "inherited-members": True}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False

highlight_language = "none"  # of blocks that name none: what commands print

html_theme = "furo"
html_title = f"my_utils {release}"
html_copy_source = False
html_extra_path = ["404.html"]
html_show_sphinx = False

# The folders of docs/, in the order of the menu; a page follows where index.md names it first.
GROUPS = {
    "runs": "Find why a job is slow or hangs",
    "time": "Time stages and functions",
    "traces": "Open traces and rows",
    "capture": "Profile a job that runs",
    "correctness": "Prove that results are the same",
    "memory": "Find where the memory goes",
    "port": "Port CUDA code",
    "": "Look something up",
    "api": "API reference",
}

# Methods of types in C that only their subclasses in Python call.
CALLED_BY_PYTHON = {
    "after", "arm_spec", "before", "count_passes", "disarm_window", "forget_all", "leave_module",
    "pending", "reported", "restore", "state", "unwatch",
}  # fmt: skip

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(?:#[^)\s]*)?\)")


def pages_of(folder: str) -> list[str]:
    """The pages of a folder as Sphinx names them: those that index.md names, then the others."""
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    here = [path for path in (DOCS / folder).iterdir() if path.suffix in {".md", ".rst"}]
    names = {path.relative_to(DOCS).with_suffix("").as_posix() for path in here} - {"index"}
    found = re.findall(r"\]\(([\w/-]+)\.(?:md|rst)[)#]", index)
    listed = [name for name in dict.fromkeys(found) if name in names]
    return listed + sorted(names.difference(listed))


def as_download(match: re.Match[str], folder: Path) -> str:
    """A link that leaves docs/: a file of the repository is offered, a folder is only named."""
    text, target = match[1], match[2]
    path = (folder / target).resolve()
    if path.is_relative_to(DOCS):
        return match[0]
    return text if path.is_dir() else f"{{download}}`{text.strip('`')} <{target}>`"


def read_page(app: Any, docname: str, source: list[str]) -> None:
    """The pages stay what people read in the repository; here Sphinx gets what it wants of them."""
    folder = (DOCS / docname).parent
    source[0] = LINK.sub(lambda match: as_download(match, folder), source[0])
    if docname != "index":
        return
    for group, caption in GROUPS.items():
        pages = "\n".join(pages_of(group))
        source[0] += f"\n\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{pages}\n```\n"


def as_rest(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = docstrings.to_rest(lines, parameters_of(obj))


def parameters_of(obj: Any) -> list[str]:
    try:
        return list(inspect.signature(obj).parameters)
    except (TypeError, ValueError):  # it takes none, or does not say
        return []


def with_inherited_methods(
    app: Any, what: str, name: str, obj: Any, skip: bool, options: Any
) -> bool | None:
    """Of a class all methods of this project's, also of bases that are private; and those of
    mappings."""
    if what != "class" or name.startswith("_"):
        return None
    if hasattr(obj, "__objclass__") and name in CALLED_BY_PYTHON:
        return True
    written_in = getattr(obj, "__objclass__", None) or getattr(obj, "fget", None) or obj
    module = getattr(written_in, "__module__", None)
    if module is None:
        return None
    return True if module.partition(".")[0] not in ("my_utils", "collections") else None


def signature_of_init(
    app: Any, what: str, name: str, obj: Any, options: Any, signature: str, returns: str
) -> tuple[str, str] | None:
    """Where a class has both, `__new__` takes anything, and `__init__` says what."""
    if what != "class" or not {"__new__", "__init__"} <= vars(obj).keys():
        return None
    taken = inspect.signature(obj.__init__, bound_method=True)
    return inspect.stringify_signature(taken, show_return_annotation=False), ""


def copy_for_programs(app: Any, error: Exception | None) -> None:
    """llms.txt at the root of the site, and beside it what it names: pages as Markdown, schemas."""
    for path in (path for path in DOCS.rglob("*") if path.suffix in {".md", ".json", ".txt"}):
        place = Path(app.outdir) / path.relative_to(DOCS)
        if "site" not in path.parts[len(DOCS.parts) :]:
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)


def setup(app: Any) -> None:
    app.connect("build-finished", copy_for_programs)
    app.connect("source-read", read_page)
    app.connect("autodoc-process-docstring", as_rest)
    app.connect("autodoc-skip-member", with_inherited_methods)
    app.connect("autodoc-process-signature", signature_of_init)
