"""What the plugin does to a suite that does not use it: nothing."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from my_utils.testing import plugin

from ..conftest import ROOT, RunPython
from .conftest import Suite, counts

# A suite as others write them: with options, fixtures and markers for golden files of its own.
FOREIGN_CONFTEST = """
    import pytest

    def pytest_addoption(parser):
        parser.addoption("--update", action="store_true")
        parser.addoption("--update-golden", action="store_true")
        parser.addoption("--trace-file")
        parser.addini("golden", "where golden files are")

    @pytest.fixture
    def golden(request):
        return request.config.getoption("--update-golden")

    @pytest.fixture
    def timer():
        return "theirs"

    def pytest_configure(config):
        config.addinivalue_line("markers", "gate: theirs")
"""
FOREIGN_TESTS = """
    import sys, unittest
    import pytest

    HEAVY = {"torch", "numpy", "my_utils._core", "my_utils.core.ranks", "my_utils.testing.golden"}

    @pytest.mark.gate
    def test_fixtures(golden, timer):
        assert (golden, timer) == (True, "theirs")

    def test_nothing_is_loaded():
        assert "my_utils.testing.plugin" in sys.modules
        assert not HEAVY & sys.modules.keys()

    class TestCase(unittest.TestCase):
        def test_method(self):
            self.assertEqual(1, 1)

    async def test_coroutine():
        pass

    def test_doc():
        '''
        >>> 1 + 1
        2
        '''
"""


def test_a_suite_with_such_names_runs_unchanged(suite: Suite) -> None:
    suite.write("pytest.ini", "[pytest]\naddopts = --strict-markers --strict-config -W error\n")
    suite.write("conftest.py", FOREIGN_CONFTEST)
    suite.write("test_theirs.py", FOREIGN_TESTS)
    options = ("--update-golden", "--trace-file=x", "--doctest-modules", "-rA", "-q")
    outputs = [suite.run(*options), suite.run(*options, plugin=False)]
    with_it, without = ([line for line in output.splitlines() if "::" in line]
                        for output in outputs)  # fmt: skip
    assert [line for line in without if "nothing_is_loaded" not in line] == [
        line for line in with_it if "nothing_is_loaded" not in line
    ]
    assert counts(outputs[0]) == {"failed": 1, "passed": 5}  # pytest runs no coroutine by itself
    left = {path.name for path in suite.folder.iterdir()} - {".pytest_cache", "__pycache__"}
    assert left == {"conftest.py", "pytest.ini", "test_theirs.py"}


def test_the_names_begin_as_they_should(suite: Suite) -> None:
    help_text = suite.start("--help").stdout
    plain = suite.start("--help", plugin=False).stdout
    added = [line.strip() for line in help_text.splitlines() if line not in plain.splitlines()]
    options = {word for line in added for word in re.findall(r"^--[\w-]+", line)}
    assert options == {"--my-utils-update", "--my-utils-check", "--my-utils-trace"}
    keys = {found[1] for line in added if (found := re.match(r"(\w+) \(\w+\):", line))}
    assert keys == {"my_utils_gates", "my_utils_baseline"}
    fixtures = suite.start("--fixtures", "-q").stdout
    assert "tensor_golden --" in fixtures and "stage_times --" in fixtures


def test_pytest_does_not_warn_of_an_early_import(tmp_path: Path, run_python: RunPython) -> None:
    """`my_utils run` imports the package before pytest, which rewrites what a wheel lists."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/my_utils").symlink_to(ROOT / "my_utils")
    wheel = tmp_path / "site/my_utils-0.1.0.dist-info"
    wheel.mkdir()
    (wheel / "METADATA").write_text("Metadata-Version: 2.1\nName: my_utils\nVersion: 0.1.0\n")
    (wheel / "entry_points.txt").write_text(f"[pytest11]\nmy_utils = {plugin.__name__}\n")
    (wheel / "RECORD").write_text("my_utils/__init__.py,,\nmy_utils/testing/plugin.py,,\n")
    (tmp_path / "test_it.py").write_text("def test_it(tensor_golden): pass")
    program = "import sys, my_utils, pytest; sys.exit(pytest.main(['-W', 'error', '-q']))"
    done = run_python("-c", program, env={"PYTHONPATH": str(tmp_path / "site")})
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_entry_point_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"my_utils": plugin.__name__}


def test_fixtures_are_documented() -> None:
    page = (ROOT / "docs/correctness/pytest.md").read_text(encoding="utf-8")
    for name in ("tensor_golden", "stage_times", "my_utils_check", "my_utils_gate",
                 "my_utils_gates", "my_utils_baseline", "--my-utils-update", "--my-utils-trace",
                 "--my-utils-check"):  # fmt: skip
        assert f"`{name}" in page, name
