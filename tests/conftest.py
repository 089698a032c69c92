"""What all tests share: a clean environment, and Python programs run as a user runs them."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from .support.process_state import differences, process_state
from .support.profile_rows import Profile

ROOT = Path(__file__).resolve().parent.parent

# A launcher or a shell may have set these; the tests say themselves what they need. Python's
# development mode is for the tests' own process.
LAUNCHER_VARIABLES = (
    "ENABLE_TIMER",
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_RANK",
    "PYTHONDEVMODE",
    "RANK",
    "SLURM_PROCID",
    "WORLD_SIZE",
)

# How long an example takes says how busy the machine is.
settings.register_profile("everywhere", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("everywhere")

# CI tries the same examples each time, so that it fails for what a change did. Elsewhere they
# are new in every run, and find what is left.
settings.register_profile("ci", derandomize=True, database=None)
if os.environ.get("CI"):
    settings.load_profile("ci")

# A child that a test forks frees nothing of its parent: a process group of torch in a cycle waits
# there for ever for threads that the child does not have.
os.register_at_fork(after_in_child=gc.freeze)

# By mark, what each file with such tests has in it.
NAMED_BY = {
    "slow": re.compile(r"\bslow\b"),
    "thorough": re.compile(r"\bthorough\b|\bvariants\b"),
    "c_code": re.compile(r"_core|\bc_code\b"),
}
# And a file whose tests all have it.
WHOLE_BY = {
    "slow": re.compile(r"^pytestmark = .*\bmark\.slow\b", re.MULTILINE),
    "c_code": re.compile(r"_core"),
}

RunPython = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True, scope="session")
def plain_environment() -> None:
    for name in LAUNCHER_VARIABLES:
        os.environ.pop(name, None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what runs behind it
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="module")
def nothing_is_left(plain_environment: None) -> Iterator[None]:
    """The tests of a file leave the process as they found it: which files share one is chance."""
    before = process_state()
    yield
    left = differences(before, process_state())
    assert not left, f"left in the process: {left}"


@pytest.fixture
def run_python(tmp_path: Path) -> RunPython:
    """Runs `python ARGUMENTS` in a separate folder with this my_utils, whatever its status.

    Keywords go to subprocess.run, `env` on top of the environment. From CPython 3.12 on a script
    that forks is warned that there are threads, of which ours writes the files.
    """

    def run(
        *arguments: str, env: dict[str, str] | None = None, **options: object
    ) -> subprocess.CompletedProcess[str]:
        settings: dict[str, object] = {"cwd": tmp_path, "timeout": 280, **options}
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        return subprocess.run(  # type: ignore[call-overload, no-any-return]
            [sys.executable, *arguments],
            env={
                **os.environ,
                "PYTHONPATH": path,
                "PYTHONWARNINGS": "ignore:This process:DeprecationWarning",
                **(env or {}),
            },
            capture_output=True,
            text=True,
            check=False,
            **settings,
        )

    return run


@pytest.hookimpl(optionalhook=True)  # where xdist is installed
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are processors, for many tests wait for processes of theirs."""
    return len(os.sched_getaffinity(0)) + 1


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Most files have none of the slow tests, some no others; to import all takes longer than many
    tests."""
    if collection_path.suffix != ".py" or re.search(r"\bor\b|[()]", config.option.markexpr):
        return None
    terms = {term.strip() for term in config.option.markexpr.split(" and ")}
    asked = NAMED_BY.keys() & terms
    left_out = {mark for mark in WHOLE_BY if f"not {mark}" in terms}
    text = collection_path.read_text(encoding="utf-8") if asked or left_out else ""
    has_none = any(not NAMED_BY[mark].search(text) for mark in asked)
    return True if has_none or any(WHOLE_BY[mark].search(text) for mark in left_out) else None


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_c_code(items)
    check_marks(items)
    items.sort(key=lambda item: item.get_closest_marker("long_file") is None)
    skip_without_gpu(items)


def mark_c_code(items: list[pytest.Item]) -> None:
    """A file that names the C module is marked by that, so that none is forgotten."""
    names_it = {
        path: WHOLE_BY["c_code"].search(path.read_text(encoding="utf-8"))
        for path in {item.path for item in items}
    }
    for item in items:
        if names_it[item.path]:
            item.add_marker("c_code")


def check_marks(items: list[pytest.Item]) -> None:
    """What `pytest_ignore_collect` goes by."""
    for mark, said in NAMED_BY.items():
        files = {item.path for item in items if item.get_closest_marker(mark)}
        silent = [path for path in files if not said.search(path.read_text(encoding="utf-8"))]
        if silent:
            raise pytest.UsageError(f"tests marked {mark} in a file without that word: {silent}")


def skip_without_gpu(items: list[pytest.Item]) -> None:
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if not wanting:
        return
    reason = why_no_gpu()
    if reason is None:
        return
    for item in wanting:
        item.add_marker(pytest.mark.skip(reason=reason))


def why_no_gpu() -> str | None:
    """None where a CUDA device is at hand."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if torch.version.cuda is None:
        return "this torch was built without CUDA"
    return None if torch.cuda.is_available() else "no CUDA device"


@pytest.fixture
def same_numbers() -> None:
    """Of torch, whatever was drawn before: a wrong element is not found where it is close to 0."""
    import torch

    torch.manual_seed(0)


@pytest.fixture
def profile(tmp_path: Path) -> Iterator[Profile]:
    """This process writes its profile CSV into a separate folder meanwhile."""
    profile = Profile(tmp_path / "logs")
    yield profile
    profile.close()
