"""The plugin that pytest finds by itself: options, fixtures and hooks.

What they need is imported when a test or an option asks for it.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .golden import TensorGolden
    from .stage_times import StageTimes

CHECKS = ("NanInfTracker", "CompareWithCPU")
_MARKERS = (
    "my_utils_check(*names, **arguments): run the test under NanInfTracker or CompareWithCPU, "
    "with these arguments; without a name under neither",
    "my_utils_gate(*limits): fail if the stages of stage_times take more than the last time, such "
    "as 'iter:+10%'",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("my_utils", "tensors and stage times, by my_utils")
    group.addoption(
        "--my-utils-update",
        action="store_true",
        help="write golden files, and keep stage times, instead of comparing with them",
    )
    group.addoption(
        "--my-utils-check",
        action="append",
        default=[],
        choices=CHECKS,
        help="run each test under it; repeatable",
    )
    group.addoption(
        "--my-utils-trace",
        metavar="FILE",
        help="write the test run as a trace for Perfetto, with a track for each worker of xdist",
    )
    parser.addini("my_utils_gates", "limits of tests without my_utils_gate", "args")
    parser.addini("my_utils_baseline", "folder of stage times (default: in pytest's cache)")


def pytest_configure(config: pytest.Config) -> None:
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)
    trace = config.getoption("my_utils_trace")
    if trace and not hasattr(config, "workerinput"):  # a worker of xdist sends its reports
        from .run_trace import RunTrace

        try:
            config.pluginmanager.register(RunTrace(Path(config.invocation_params.dir, trace)))
        except ValueError as error:
            raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    by_option = item.config.getoption("my_utils_check")
    if by_option or item.get_closest_marker("my_utils_check"):
        from .operators import read_checks, run_checked

        result = yield from run_checked(read_checks(item, by_option))
    else:
        result = yield
    stage_times = getattr(item, "funcargs", {}).get("stage_times")
    if stage_times is not None:
        stage_times.judge()
    return result


@pytest.fixture
def tensor_golden(request: pytest.FixtureRequest) -> TensorGolden:
    """Compares tensors with a text file beside the test: `tensor_golden(model(x), "logits")`."""
    from .golden import TensorGolden

    return TensorGolden(request)


@pytest.fixture
def stage_times(request: pytest.FixtureRequest) -> Generator[StageTimes]:
    """A timer for the test; with my_utils_gate it must not be slower than the last time."""
    from .stage_times import StageTimes

    times = StageTimes(request)
    yield times
    times.close()
