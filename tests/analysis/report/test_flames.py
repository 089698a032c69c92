"""Flame graphs of stages in the page of a report: what one sees of a sampled profile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from my_utils.analysis.process_stacks.profile import NO_STAGE, Sample, newest_profile
from my_utils.analysis.process_stacks.record import Frame, StackRecord
from my_utils.analysis.report.flames import NODES_MAX, Flames, flames_from
from my_utils.analysis.report.run_page import RANKS_IN_STEP
from tests.conftest import RunPython
from tests.support.axe import violations
from tests.support.page_runs import HOSTILE, opened, page_of, slow_loader
from tests.support.run_csv import START_NS, RankCsv
from tools.perfetto_ui import Page as Tab

from .test_page import box_of, key, mouse, text_of

RANKS = 8
TORN = ()


def stack(*functions: str) -> tuple[Frame, ...]:
    files = {"resize": "/lib/PIL/Image.py", HOSTILE: f"/tmp/{HOSTILE}.py"}
    return tuple(Frame(name, files.get(name, "/src/data.py"), 7) for name in functions)


def samples() -> list[Sample]:
    """Of a stage of 100 samples on each rank: 41 in `resize` on rank 7, 3 on the others, here and
    there."""
    found = []
    for rank in range(RANKS):
        resizes = 41 if rank == 7 else 3
        stacks = [stack("main", "load", "decode", "resize")] * resizes
        stacks += [stack("main", "load", "decode")] * (80 - resizes)
        stacks += [stack("main", "load", HOSTILE)] * 19 + [TORN]
        found += [("iter/input", rank, stacks[at * 37 % len(stacks)]) for at in range(len(stacks))]
        found += [("iter/forward", rank, stack("main", "forward", "matmul"))] * 50
        found += [(NO_STAGE, rank, stack("main", "import"))] * 200
    return [
        Sample(rank, 100 + rank, True, at * 10_000_000, stage, frames)
        for at, (stage, rank, frames) in enumerate(found)
    ]


@pytest.fixture(scope="module")
def text() -> str:
    return page_of(slow_loader(2, 20), flames=flames_from(samples()))


@pytest.fixture(scope="module")
def tab(text: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with opened(text, tmp_path_factory.mktemp("flames")) as tab:
        yield tab


def choose(tab: Tab, name: str, text: str) -> None:
    tab.evaluate(f"""(() => {{
        const select = document.getElementById({json.dumps(name)});
        select.value = [...select.options].find(o => o.textContent === {json.dumps(text)}).value;
        select.dispatchEvent(new Event("change"));
    }})()""")


def test_what_stands_out_is_said(tab: Tab) -> None:
    lines = tab.evaluate(
        "[...document.querySelectorAll('#flame-lines li')].map(l => l.textContent)"
    )
    assert lines == ["rank 7 spends 41% ± 9% of `iter/input` in `resize Image.py`, the others 3%"]


def test_the_table_has_it_without_javascript(text: str, tmp_path: Path) -> None:
    with opened(text, tmp_path) as tab:
        tab.call("Emulation.setScriptExecutionDisabled", value=True)
        tab.call("Page.reload")
        tab.wait_for("!document.documentElement?.dataset.drawn", "the page without its script")
        tab.wait_for("document.readyState === 'complete'", "the page")
        rows = tab.evaluate(
            "[...document.querySelectorAll('#functions tbody tr')]"
            ".map(r => [...r.cells].map(c => c.innerText))"
        )
        assert tab.evaluate("document.getElementById('flame').offsetHeight") == 0
        assert "rank 7 spends 41%" in tab.evaluate("document.body.innerText")
    assert ["iter/input", "resize Image.py", "7.8 %", "7.8 %", "7", "41.0 %", "3.0 %"] in rows
    assert [row[0] for row in rows][-1] == NO_STAGE  # last, though it has most samples


def test_the_keyboard_moves_through_the_graph(tab: Tab) -> None:
    choose(tab, "flame-stage", "iter/input")
    choose(tab, "flame-rank", "rank 7")
    tab.evaluate("document.getElementById('flame').focus()")
    said = []
    for name in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowUp", "ArrowRight", "ArrowLeft"):
        key(tab, name)
        said.append(text_of(tab, "flame-readout"))
    assert said[0].startswith("load data.py: 99 % of iter/input on rank 7")
    assert said[1].startswith("decode data.py: 80 %")
    assert said[2] == "resize Image.py: 41 % of iter/input on rank 7, the others 3 %"
    assert said[3] == said[5] == said[1]
    assert said[4].startswith(f"{HOSTILE} {HOSTILE.rpartition('/')[2]}.py: 19 %")
    key(tab, "Enter")
    assert tab.evaluate("document.getElementById('flame-reset').hidden") is False
    key(tab, "ArrowDown")
    assert text_of(tab, "flame-readout") == said[1]
    key(tab, "0")
    assert tab.evaluate("document.getElementById('flame-reset').hidden") is True


def test_hovering_tells_all_ranks_and_a_click_zooms(tab: Tab) -> None:
    choose(tab, "flame-stage", "iter/input")
    choose(tab, "flame-rank", "all ranks")
    box = box_of(tab, "flame")
    at = (box["x"] + 0.03 * box["width"], box["y"] + 2 + 2.5 * 20)
    mouse(tab, "mouseMoved", *at)
    assert text_of(tab, "flame-readout") == (
        "resize Image.py: 7.8 % of iter/input; on rank 7 41 %, the others 3 %"
    )
    for kind in ("mousePressed", "mouseReleased"):
        mouse(tab, kind, *at, button="left", clickCount=1)
    mouse(tab, "mouseMoved", box["x"] + 0.9 * box["width"], box["y"] + 12)
    assert text_of(tab, "flame-readout").startswith("resize Image.py: 7.8 %")
    tab.evaluate("document.getElementById('flame-reset').click()")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_red_where_the_rank_spends_more(scheme: str, tab: Tab) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    tab.call("Emulation.setEmulatedMedia", features=features)
    choose(tab, "flame-stage", "iter/input")
    choose(tab, "flame-rank", "rank 7")
    pixel = """(() => {
        const canvas = document.getElementById("flame");
        const width = canvas.width * %f;
        return [...canvas.getContext("2d").getImageData(width, %d, 1, 1).data];
    })()"""
    resize, load = (tab.evaluate(pixel % (0.35, y)) for y in (2 + 50, 2 + 10))
    assert resize[0] > 1.5 * resize[2]
    assert max(load[:3]) - min(load[:3]) < 40
    tab.call("Emulation.setEmulatedMedia", features=[])


def test_names_stay_text(tab: Tab, text: str) -> None:
    assert tab.evaluate("document.querySelectorAll('img').length") == 0
    assert "hacked" not in tab.evaluate("document.title")
    assert HOSTILE in text_of(tab, "functions")
    assert HOSTILE not in text


def test_it_is_readable_at_400_pixels(text: str, tmp_path: Path) -> None:
    with opened(text, tmp_path, width=400) as tab:
        assert tab.evaluate("document.documentElement.scrollWidth") <= 400
        assert box_of(tab, "flame")["width"] > 350


@pytest.mark.slow
def test_it_can_be_used_by_everybody(text: str, tmp_path: Path) -> None:
    with opened(text, tmp_path) as tab:
        assert violations(tab) == []


# --- data ---


def test_many_functions_stay_small() -> None:
    """The page holds those that take most; what they are called by is there, too."""
    found = [
        Sample(0, 1, True, at, "input", stack("main", f"f{at % 5000}", f"g{at}"))
        for at in range(20_000)
    ]
    found += [Sample(0, 1, True, 0, "input", stack("main", "big", "bigger"))] * 500
    data = flames_from(found).data
    [stage] = data["stages"]
    assert len(stage["nodes"]) <= NODES_MAX
    assert all(parent < at for at, (_, parent, *_) in enumerate(stage["nodes"]))
    assert {"big data.py", "bigger data.py"} <= {data["names"][node[0]] for node in stage["nodes"]}
    assert len(json.dumps(data)) < 50_000


def test_one_rank_has_no_others() -> None:
    flames = flames_from([one for one in samples() if one.rank == 7])
    assert flames.lines == []
    assert flames.title.startswith("What the stages spend their time in: rank 7, ")


def write_record(folder: Path, id: str, rank: int, **more: Any) -> Path:
    fields: dict[str, Any] = {
        "kind": "profile", "functions": [("f", "/a.py", 1)], "frames": [(0, 1)], "stacks": [[0]],
        "samples": [(1, 5, 0, 0)], **more,
    }  # fmt: skip
    record = StackRecord("stacks", 1, id, rank, f"rank_{rank}", **fields)
    folder.mkdir(exist_ok=True)
    path = folder / f"{id}__rank_{rank}.stacks.json"
    path.write_bytes(msgspec.json.encode(record))
    return path


def test_the_newest_profile_counts(tmp_path: Path) -> None:
    folder = tmp_path / "captures"
    for rank in range(3):
        write_record(folder, "20260101T000000-a", rank)
    for rank in (0, 2):
        write_record(folder, "20260102T000000-b", rank)
    write_record(folder, "20260103T000000-c", 1, kind="dump")
    write_record(folder, "20260102T000000-b", 1, refused="off")
    damaged = folder / "20260102T000000-b__rank_9.stacks.json"
    damaged.write_text('{"my_utils": "stacks", "stacks": [[7]]}')
    found = newest_profile([tmp_path])
    assert found is not None and found.id == "20260102T000000-b"
    assert [record.rank for record in found.records] == [0, 2]
    assert len(found.problems) == 1 and str(damaged) in found.problems[0]
    chosen = newest_profile([tmp_path], {1})
    assert chosen is not None and chosen.id == "20260101T000000-a"
    assert newest_profile([tmp_path], {5}) is None
    assert newest_profile([tmp_path / "captures"]) is None


def test_problems_stand_in_the_page() -> None:
    flames = flames_from(samples(), ["the profile of rank 9 cannot be read: <b>"])
    assert isinstance(flames, Flames)
    assert "the profile of rank 9 cannot be read: &lt;b&gt;" in page_of(
        slow_loader(2, 20), flames=flames
    )


OPENED = """
import collections, json, sys
opened = collections.Counter()
def see(event, arguments):
    # io.open says its mode; an opener's os.open, which it calls, says none. Whether a file can be
    # opened is asked before, and reads nothing.
    if event == "open" and str(arguments[0]).endswith(".csv") and arguments[1] is not None and (
        sys._getframe(1).f_code.co_name != "_why_not"
    ):
        opened[str(arguments[0]).rpartition("/")[2]] += 1
sys.addaudithook(see)
from my_utils.analysis.report.judged import Source
from my_utils.analysis.report.run_page import make_page
page = make_page(Source(("logs",)))
print(json.dumps([opened, page.flames.data["stages"], page.flames.title]))
"""


def test_files_of_profiled_ranks_are_read_once(tmp_path: Path, run_python: RunPython) -> None:
    """But for the ranks of the worst step, whose spans are shown."""
    ranks, steps, step_ms = 8, 30, 10.0
    logs = tmp_path / "logs"
    logs.mkdir()
    for rank in range(ranks):
        csv = RankCsv(rank, ranks)
        csv.process()
        for step in range(steps):
            csv.step(step, step * step_ms, [("input", 0, 4), ("forward", 4, 10)])
        csv.write(logs)
        samples = [(START_NS + int(1e6 * ms), 1, 0, 0) for ms in (50, 52, 57, 61, 900)]
        write_record(logs / "captures", "20260101T000000-a", rank, samples=samples, pid=1)
    opened, stages, title = json.loads(run_python("-c", OPENED).stdout)
    counts = sorted(opened.values())
    assert counts[: ranks - RANKS_IN_STEP] == [1] * (ranks - RANKS_IN_STEP), opened
    assert {one["name"]: one["of_rank"][0] for one in stages} == {
        "input": 3, "forward": 1, NO_STAGE: 1,
    }  # fmt: skip
    assert title.endswith("ranks 0-7, 0.85 s")
