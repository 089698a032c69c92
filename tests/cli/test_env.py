"""`my_utils env`: what is installed, without importing it."""

from __future__ import annotations

import json
import platform
import re
from pathlib import Path

import pytest

import my_utils

from ..conftest import ROOT, RunPython
from ..support.on_terminal import on_terminal, plain
from ..support.schemas import loads_checked

METADATA = """\
Metadata-Version: 2.1
Name: my_utils
Version: 9
Requires-Dist: numpy>=1
Provides-Extra: report
Requires-Dist: numpy>=999; extra == "report"
Requires-Dist: no-such-package>=3; extra == "report"
Provides-Extra: small
Requires-Dist: numpy ; extra == 'small'
Requires-Dist: my_utils[report,small]; extra == "all"
"""


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment in which pip has written down these requirements of my_utils."""
    place = tmp_path / "site" / "my_utils-9.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(METADATA)
    return {"PYTHONPATH": f"{place.parent}:{ROOT}"}


def test_what_each_extra_would_add(installed: dict[str, str], run_python: RunPython) -> None:
    done = run_python("-m", "my_utils", "env", "--json", env=installed)
    found = loads_checked("env", done.stdout)
    assert list(found["extras"]) == ["report", "small"]
    assert found["extras"]["report"]["missing"] == ["numpy>=999", "no-such-package>=3"]
    assert found["extras"]["small"]["missing"] == []
    assert list(found["extras"]["small"]["installed"]) == ["numpy"]
    text = run_python("-m", "my_utils", "env", env=installed).stdout
    assert re.search(
        r"^\[report\] +numpy \S+; not installed: numpy>=999, no-such-package>=3$",
        text, re.MULTILINE,
    )  # fmt: skip


def test_what_is_here(tmp_path: Path, run_python: RunPython) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank_0.heartbeat.json").touch()
    program = (
        "import sys; from my_utils.cli.command import main\n"
        "main(['env', '--json'])\n"
        "print(sorted({'torch', 'numpy', 'rich'} & set(sys.modules)), file=sys.stderr)"
    )
    done = run_python("-c", program, env={"MY_UTILS_CAPTURE": "0"})
    assert done.stderr == "[]\n"
    found = json.loads(done.stdout)
    assert found["version"] == 1
    assert found["my_utils"] == {"version": my_utils.__version__, "path": str(ROOT / "my_utils")}
    assert found["python"]["version"] == platform.python_version()
    assert found["logs"] == {"path": str(tmp_path / "logs"), "how": "logs is the only run here"}
    assert found["variables"]["MY_UTILS_CAPTURE"] == "0"
    if not found["cuda"]["driver"]:
        assert found["cuda"]["reason"]


def test_on_terminals(installed: dict[str, str], tmp_path: Path) -> None:
    command = ["-m", "my_utils", "env"]
    for columns in (40, 120):
        status, shown = on_terminal(
            command, tmp_path, env=installed, with_output=True, columns=columns
        )
        assert status == 0
        lines = plain(shown).splitlines()
        assert max(map(len, lines)) <= columns
        assert "no-such-package>=3" in plain(shown)
        assert "\x1b[33m" in shown
    for words, env in ((["--no-color"], {}), ([], {"NO_COLOR": "1"})):
        _, shown = on_terminal(
            [*command, *words], tmp_path, env={**installed, **env}, with_output=True
        )
        assert "\x1b[33m" not in shown
