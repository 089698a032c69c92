"""Files of a log directory are opened by `open_without_waiting`; what opens others has a reason."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import ROOT

pytestmark = pytest.mark.no_torch

MODULES = {  # of which these functions open a file that is named
    "io": {"open"},
    "os": {"open"},
    "gzip": {"open", "GzipFile"},
    "mmap": {"mmap"},
    "np": {"load", "memmap", "loadtxt", "genfromtxt", "fromfile"},
    "numpy": {"load", "memmap", "loadtxt", "genfromtxt", "fromfile"},
    "sqlite3": {"connect"},
    "json": {"load"},
    "pickle": {"load"},
    "zipfile": {"ZipFile"},
}
METHODS = {"read_text", "read_bytes", "read_csv", "read_json", "read_parquet"}
WRITES = frozenset("wax+")

NAMED = "the user names the file"
OWN = "this process has made the file, or started who did"
PACKAGE = "a file of this package"
SYSTEM = "a file of the system"
CHECKED = "looks at what it has opened, without waiting"
WRITTEN = "it is written, or made"
OPENED = "reads what is open already"
ALLOWED = {
    "analysis/live/alerts/host_memory.py": (5, SYSTEM),
    "analysis/live/memory.py": (2, SYSTEM),
    "analysis/pages/html.py": (1, PACKAGE),
    "analysis/replay/read_nsys.py": (1, NAMED),
    "analysis/report/cells.py": (1, OWN),
    "analysis/report/on_ray.py": (2, OWN),
    "analysis/report/run_page.py": (1, OWN),
    "cli/demo.py": (2, OWN),
    "cli/demo_gpt.py": (1, PACKAGE),
    "cli/env.py": (1, SYSTEM),
    "core/bounded_read.py": (1, OPENED),
    "core/command_line.py": (1, SYSTEM),
    "core/files.py": (3, f"{SYSTEM}; {WRITTEN}; a folder, for its number"),
    "core/lazy_names.py": (1, PACKAGE),
    "core/outputs.py": (2, WRITTEN),
    "core/plain_files.py": (1, OPENED),
    "core/ranks.py": (1, SYSTEM),
    "core/reader_child.py": (1, SYSTEM),
    "core/trusted_open.py": (3, CHECKED),
    "musa/musa_extension.py": (3, OWN),
    "musa/_port_file.py": (2, NAMED),
    "musa/_port_hip.py": (1, OWN),
    "musa/_port_output.py": (2, OWN),
    "musa/_rules.py": (1, PACKAGE),
    "profilers/capture/on_demand/control_file.py": (2, CHECKED),
    "profilers/memory/tracker/sources.py": (1, SYSTEM),
    "profilers/torch_profiler/window_files.py": (1, OWN),
    "record/log/handlers.py": (1, SYSTEM),
    "run/agreement.py": (1, SYSTEM),
    "run/hosts/receiving.py": (3, f"{WRITTEN}; a folder, for its number"),
    "run/parent.py": (1, SYSTEM),
    "run/report_file.py": (1, WRITTEN),
    "run/sitecustomize/sitecustomize.py": (1, WRITTEN),
    "run/stages/counters.py": (1, SYSTEM),
    "run/unreached.py": (4, SYSTEM),
    "tensors/dumps/files.py": (4, CHECKED),
    "tensors/dumps/writer.py": (1, OWN),
    "tensors/passport/checkpoints.py": (4, f"{OPENED}; {NAMED}"),
    "tensors/replicas/file.py": (1, WRITTEN),
    "testing/run_trace.py": (1, WRITTEN),
    "trace/browser.py": (1, OWN),
    "trace/csv2trace.py": (1, OPENED),
}


def bare_openers(path: Path) -> Iterator[int]:
    """The lines of calls that open a file to read, and do so without an opener."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Call) and is_bare(node):
            yield node.lineno


def is_bare(call: ast.Call) -> bool:
    function = call.func
    if isinstance(function, ast.Name):
        has_opener = any(keyword.arg == "opener" for keyword in call.keywords)
        return function.id == "open" and not has_opener and not is_written(call, 1)
    if not isinstance(function, ast.Attribute):
        return False
    of = function.value.id if isinstance(function.value, ast.Name) else ""
    if of in MODULES:
        return function.attr in MODULES[of] and not is_written(call, 1)
    return function.attr in METHODS or (function.attr == "open" and is_mode(call, 0))


def is_written(call: ast.Call, place: int) -> bool:
    return is_mode(call, place) and bool(WRITES & set(mode_of(call, place)))


def is_mode(call: ast.Call, place: int) -> bool:
    return bool(mode_of(call, place)) and set(mode_of(call, place)) <= set("rwaxbt+")


def mode_of(call: ast.Call, place: int) -> str:
    given = [keyword.value for keyword in call.keywords if keyword.arg == "mode"]
    given += call.args[place : place + 1]
    is_text = given and isinstance(given[0], ast.Constant) and isinstance(given[0].value, str)
    return str(given[0].value) if is_text else ""  # type: ignore[attr-defined]


def test_each_other_opener_has_a_reason() -> None:
    found: Counter[str] = Counter()
    for path in sorted((ROOT / "my_utils").rglob("*.py")):
        count = sum(1 for _ in bare_openers(path))
        if count:
            found[path.relative_to(ROOT / "my_utils").as_posix()] = count
    assert found == {name: count for name, (count, _) in ALLOWED.items()}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("open(path)", 1),
        ("open(path, 'rb')", 1),
        ("open(path, 'rb', opener=open_without_waiting)", 0),
        ("open(path, 'wb')", 0),
        ("path.open('rb')", 1),
        ("window.open()", 0),
        ("Path(path).read_text()", 1),
        ("os.open(path, os.O_RDONLY)", 1),
        ("gzip.open(path)", 1),
        ("pandas.read_csv(path)", 1),
        ("json.load(file)", 1),
        ("json.loads(text)", 0),
    ],
)
def test_what_is_found(text: str, count: int, tmp_path: Path) -> None:
    (tmp_path / "it.py").write_text(text)
    assert sum(1 for _ in bare_openers(tmp_path / "it.py")) == count
