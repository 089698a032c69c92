"""A training that hangs leaves a dump of torch's flight recorder, and `why` names by it who holds
the others up, also after the training was killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from my_utils.core.run_files.files import FLIGHTS_FOLDER
from my_utils.core.warnings import forget
from my_utils.run.closing import verdict_lines
from my_utils.run.environment import hung_after_s
from my_utils.run.stages.standstill import StandstillWatch

from ..conftest import RunPython
from ..support.hung_training import hung_run
from ..support.live_ranks import wait_until
from ..support.schemas import loads_checked

pytest.importorskip("torch")

pytestmark = pytest.mark.timeout(400)

START_S = 100.0


def test_each_standstill_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from my_utils.run.stages import standstill

    steps, dumps = [1], list[int]()

    def read_recorder(with_stacks: bool) -> bytes:
        dumps.append(steps[0])
        return b"dump"

    monkeypatch.setattr(standstill, "read_recorder", read_recorder)
    watch = StandstillWatch(lambda: steps[0], tmp_path, 3, 0.05)
    try:
        path = tmp_path / FLIGHTS_FOLDER / "dump_3"
        wait_until(path.exists, START_S)
        assert path.read_bytes() == b"dump"
        steps[0] = 2
        wait_until(lambda: len(dumps) == 2 and path.exists(), START_S)
        steps[0] = 3
        wait_until(lambda: not path.exists(), START_S)
    finally:
        watch.stop()
    assert dumps[:2] == [1, 2]


def test_a_folder_that_cannot_be_made_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FLIGHTS_FOLDER).write_text("in the way", encoding="utf-8")
    watch = StandstillWatch(lambda: 1, tmp_path, 0, 0.05)
    try:
        wait_until(lambda: "will not know" in caplog.text, 20.0)
    finally:
        watch.stop()


@pytest.mark.parametrize(
    ("text", "seconds"), [("", 30.0), ("0", 0.0), (" 7.5 ", 7.5), ("5m", None), ("-1", None),
                          ("nan", None), ("inf", None)],
)  # fmt: skip
def test_how_long_a_rank_may_stand_still(
    text: str,
    seconds: float | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("MY_UTILS_RUN_HUNG", text)
    assert hung_after_s() == (30.0 if seconds is None else seconds)
    forget("environment:MY_UTILS_RUN_HUNG")
    said = (
        f"MY_UTILS_RUN_HUNG in the environment should be seconds, 0 for never, not {text!r}; "
        "it is ignored, which means 30"
    )
    assert caplog.messages == ([said] if seconds is None else [])


@pytest.mark.slow
def test_a_real_one(tmp_path: Path, run_python: RunPython, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_UTILS_RUN_HUNG", "7")
    with hung_run(tmp_path, "between", 1, 2) as logs:
        folder = logs / FLIGHTS_FOLDER
        wait_until(lambda: len(list(folder.glob("dump_*"))) == 2, START_S)
        wait_until(lambda: "never entered" in why(logs, run_python), START_S)
        lines = why(logs, run_python).splitlines()
    assert lines[0].startswith("HANGS since ")
    assert lines[1].startswith("who holds the others up, by 2 dumps in ")
    assert lines[2].startswith("! rank 1 never entered all")
    assert "standstill.py" not in "".join(lines), "the thread that watches is not the user's"
    after = why(logs, run_python)
    assert after.startswith("ENDED in the middle of its work")
    assert "! rank 1 never entered all" in after
    assert verdict_lines([str(logs)], 12)[2].startswith("! rank 1 never entered all")
    done = run_python("-m", "my_utils", "why", str(logs), "--hung", "2", "--json")
    (cause,) = loads_checked("why", done.stdout)["hang"]["flight_recorder"]["causes"]
    assert (cause["ranks"], cause["waiting"]) == ([1], [0])


def why(logs: Path, run_python: RunPython) -> str:
    done = run_python("-m", "my_utils", "why", str(logs), "--hung", "2")
    return done.stdout
