"""Sandboxes that lack what Linux has: a fork is noticed where the kernel wipes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..conftest import RunPython
from ..fakes import compile_fake
from .programs import finished, steps_of

pytestmark = pytest.mark.no_torch


@pytest.fixture(scope="session")
def no_wipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_fake("no_wipe.c", tmp_path_factory.mktemp("fake") / "libnowipe.so")


@pytest.mark.parametrize("how", ["refused", "all refused", "ignored"])
def test_a_child_records_for_itself_where_the_kernel_wipes_nothing(
    run_python: RunPython, tmp_path: Path, no_wipe: Path, how: str
) -> None:
    done = finished(
        run_python,
        """
        logger.setup("logs", console=False)
        stages(100)
        child = os.fork()
        if child == 0:
            stages(50, "of_the_child")
            logger.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        stages(100, first=100)
        other = threading.Thread(target=stages, args=(10, "in_a_thread"))
        other.start()
        other.join()
        logger.close()
        """,
        # CPython 3.12 and newer warn of a fork beside threads.
        env={"LD_PRELOAD": str(no_wipe), "NO_WIPE": how, "PYTHONWARNINGS": "ignore"},
    )
    assert done.stderr == ""
    own, of_child = tmp_path / "logs/profile_rank_0.csv", tmp_path / "logs/profile_rank_0.w1.csv"
    assert steps_of(own) == list(range(200))
    assert steps_of(own, "in_a_thread") == list(range(10))
    assert steps_of(own, "of_the_child") == []
    assert steps_of(of_child, "of_the_child") == list(range(50))
    assert steps_of(of_child) == []
