"""`make size` agrees with what Python imports and what C files include."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tools.reach import circles, code_lines, reached

ROOT = Path(__file__).resolve().parents[1]

IMPORTED = """
import json, sys
from my_utils.cli.command import main
try:
    main()
finally:
    names = [name for name in sys.modules if name.partition(".")[0] == "my_utils"]
    print(json.dumps(names), file=sys.stderr)
"""


def test_a_command_imports_only_what_it_is_said_to_reach(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, "why", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    imported = set(json.loads(done.stderr.splitlines()[-1]))
    assert "my_utils.analysis.verdict.rank_files" in imported
    common = {"my_utils._core", "my_utils.__main__"}
    via_the_command = reached(ROOT, "my_utils", "cli.command").keys()
    found = reached(ROOT, "my_utils", "cli.why").keys()
    assert imported - common - via_the_command <= found


def test_lazy_imports_and_names_of_modules_count_and_types_do_not(tmp_path: Path) -> None:
    package = tmp_path / "pack"
    package.mkdir()
    for name, text in {
        "__init__": "",
        "first": "from typing import TYPE_CHECKING\n\nfrom . import lazy\nif TYPE_CHECKING:\n"
        "    from . import types_only\n",
        "lazy": "def call():\n    from .inner import value\n    return value\n",
        "inner": 'value = __import__("pack.by_name")\n',
        "by_name": "one = 1\ntwo = 2\n",
        "types_only": "",
        "other": "",
    }.items():
        (package / f"{name}.py").write_text(text)
    found = reached(tmp_path, "pack", "first")
    assert found == {
        "pack": 0, "pack.first": 5, "pack.lazy": 3, "pack.inner": 1, "pack.by_name": 2
    }  # fmt: skip


def test_code_is_no_comment_import_or_docstring(tmp_path: Path) -> None:
    file = tmp_path / "one.py"
    file.write_text('"""Two\nlines."""\n\nimport os\n\n\n# a reason\ndef f():\n    return os\n')
    assert code_lines([file]) == 2


def test_a_circle_is_found_once_and_a_file_with_its_header_is_none(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    for name, included in {
        "a.h": "b.h", "b.h": "c.h", "c.c": "a.h", "c.h": "leaf.h", "leaf.c": "leaf.h", "leaf.h": "",
        "a_avx2.c": "a.h",
    }.items():  # fmt: skip
        line = f'#include "base/{included}"\n' if included else ""
        (tmp_path / "base" / name).write_text(line)
    assert circles(tmp_path) == [["base/a", "base/b", "base/c"]]
