"""The page of a report in a real browser: what one sees, and what a mouse and a keyboard do."""

from __future__ import annotations

import base64
import http.server
import json
import re
import threading
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from my_utils.analysis.pages.tables import times
from my_utils.analysis.report.bars import mean_step
from my_utils.analysis.report.page import code_cells
from my_utils.analysis.verdict.run_data import RunData
from my_utils.analysis.verdict.waits import waits_by_stage
from my_utils.core.colours import luminance, stage_colour, text_colour
from tests.support.axe import violations
from tests.support.page_runs import BACKWARD, HOSTILE, STAGES, opened, page_of, slow_loader
from tools.perfetto_ui import Page as Tab

RANKS, STEPS = 12, 60


@pytest.fixture(scope="module")
def run() -> RunData:
    return slow_loader(RANKS, STEPS)


@pytest.fixture(scope="module")
def tab(run: RunData, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with opened(page_of(run), tmp_path_factory.mktemp("page")) as tab:
        yield tab


def mouse(tab: Tab, kind: str, x: float, y: float, **more: Any) -> None:
    tab.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)


def key(tab: Tab, name: str, **more: Any) -> None:
    text: dict[str, Any] = {"text": name} if len(name) == 1 else {}
    for kind in ("keyDown", "keyUp"):
        tab.call("Input.dispatchKeyEvent", type=kind, key=name, **text, **more)


def box_of(tab: Tab, name: str) -> dict[str, float]:
    script = f"""(() => {{
        const node = document.getElementById({json.dumps(name)});
        node.scrollIntoView({{block: "center"}});
        const {{x, y, width, height}} = node.getBoundingClientRect();
        return {{x, y, width, height}};
    }})()"""
    box: dict[str, float] = tab.evaluate(script)
    return box


def text_of(tab: Tab, name: str) -> str:
    return str(tab.evaluate(f"document.getElementById({json.dumps(name)}).textContent"))


def ms_in(text: str) -> float:
    """The first time of a text, in ms."""
    found = re.search(r"([\d.]+) (s|ms|µs)", text)
    assert found is not None, text
    return float(found[1]) * {"s": 1e3, "ms": 1.0, "µs": 1e-3}[found[2]]


# --- what stands in the file ---


def test_nothing_is_fetched_and_no_other_script_would_run(run: RunData, tab: Tab) -> None:
    text = page_of(run)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    assert "default-src &#39;none&#39;" in policy[1]
    assert "unsafe" not in policy[1]
    assert tab.evaluate("performance.getEntriesByType('resource').length") == 0
    # A script that was slipped in is refused by the policy.
    tab.evaluate(
        "(() => { const s = document.createElement('script');"
        " s.textContent = 'document.title = \"hacked\"'; document.body.append(s); })()"
    )
    assert "hacked" not in tab.evaluate("document.title")
    for word in ("eval(", "innerHTML", "insertAdjacentHTML", "new Function"):
        assert word not in text


def test_names_stay_text(tab: Tab) -> None:
    assert tab.evaluate("document.querySelectorAll('img').length") == 0
    assert "hacked" not in tab.evaluate("document.title")
    assert HOSTILE in text_of(tab, "stages")
    assert "<b>others</b>" in text_of(tab, "verdict")
    assert "<b>Input/output error</b>" in tab.evaluate("document.body.innerText")


def test_what_matters_is_there_without_javascript(run: RunData, tmp_path: Path) -> None:
    """Scripts of the page are off; the protocol's own still run."""
    with opened(page_of(run), tmp_path) as tab:
        tab.call("Emulation.setScriptExecutionDisabled", value=True)
        tab.call("Page.reload")
        tab.wait_for("!document.documentElement?.dataset.drawn", "the page without its script")
        tab.wait_for("document.readyState === 'complete'", "the page")
        seen = tab.evaluate("document.body.innerText")
    for words in ("BOUND BY INPUT", "Where a step goes", "waits 2", "rank 11", "optimizer 1.2"):
        assert words in seen
    assert "open in Perfetto" not in seen  # what would do nothing is not shown


def test_the_mean_step_adds_up(run: RunData, tab: Tab) -> None:
    shown = tab.evaluate(
        "[...document.querySelectorAll('#mean-step ~ svg rect')].map(r => +r.getAttribute('width'))"
    )
    assert len(shown) == len(STAGES) + 2  # with waiting, and what no stage covers
    assert sum(shown) == pytest.approx(1000, abs=0.01)
    assert shown[:-1] == pytest.approx(1000 * np.array(shares_of(run)), abs=0.01)


def shares_of(run: RunData) -> list[float]:
    """Of the stages without what ranks wait for one another in backward, then of that."""
    took = run.totals.sum((0, 1))
    waited = (run.totals[:, :, BACKWARD] - run.totals[:, :, BACKWARD].min(0)).sum()
    took[BACKWARD] -= waited
    return [float(ns / run.step_ns.sum()) for ns in (*took, waited)]


def test_what_ranks_wait_is_a_part_of_the_mean_step() -> None:
    run = slow_loader(12, 60)
    waits = waits_by_stage(run, ["backward"])
    parts = mean_step(run, waits)
    assert [part.name for part in parts[-2:]] == ["waiting for other ranks", "untimed"]
    assert [part.share for part in parts[:-1]] == pytest.approx(shares_of(run))


def test_who_waited_least_comes_first(run: RunData, tab: Tab) -> None:
    names = tab.evaluate("[...document.querySelectorAll('.bars > span')].map(s => s.textContent)")
    assert names[0] == "rank 1"
    waits = run.totals[:, :, BACKWARD] - run.totals[:, :, BACKWARD].min(0)
    assert [ms_in(text) for text in names[1::2]] == pytest.approx(
        sorted(waits.mean(1) * 1e-6), rel=0.01
    )


# --- the heat map ---


def cell_ms(run: RunData, row: int, column: int) -> float:
    return float(run.step_ns[row, column] - run.totals[row, column, BACKWARD]) * 1e-6


def test_hovering_tells_the_cell(run: RunData, tab: Tab) -> None:
    box = box_of(tab, "heat")
    for row, column in ((0, 0), (1, STEPS - 1), (7, 31)):
        x = box["x"] + (column + 0.5) * box["width"] / STEPS
        y = box["y"] + (row + 0.5) * box["height"] / RANKS
        mouse(tab, "mouseMoved", x, y)
        text = text_of(tab, "heat-readout")
        assert text.startswith(f"rank {row} on node{row // 8:02d}, step {100 + column}: ")
        assert ms_in(text) == pytest.approx(cell_ms(run, row, column), rel=0.006)


def test_the_colour_is_red_where_a_rank_is_slow(tab: Tab) -> None:
    box = box_of(tab, "heat")
    script = """(() => {
        const canvas = document.getElementById("heat");
        const at = (x, y) => [...canvas.getContext("2d").getImageData(x, y, 1, 1).data];
        return [at(%d, %d), at(%d, %d)];
    })()"""
    across, down = box["width"], box["height"]
    y = int(1.5 * down / RANKS)
    slow, healthy = tab.evaluate(script % (int(0.9 * across), y, int(0.2 * across), y))
    assert slow[0] > 1.5 * slow[2]
    assert max(healthy[:3]) - min(healthy[:3]) < 40


def test_brushing_zooms_and_a_double_click_shows_all(tab: Tab) -> None:
    box = box_of(tab, "heat")
    cell = box["width"] / STEPS, box["height"] / RANKS
    start = box["x"] + 10.5 * cell[0], box["y"] + 2.5 * cell[1]
    end = box["x"] + 19.5 * cell[0], box["y"] + 5.5 * cell[1]
    mouse(tab, "mousePressed", *start, button="left", clickCount=1)
    mouse(tab, "mouseMoved", *end, button="left")
    mouse(tab, "mouseReleased", *end, button="left", clickCount=1)
    assert text_of(tab, "heat-steps").startswith("steps 110 to 119 from left to right, 4 of 12")
    box = box_of(tab, "heat")
    mouse(tab, "mouseMoved", box["x"] + 1, box["y"] + 1)
    assert text_of(tab, "heat-readout").startswith("rank 2 on node00, step 110:")
    tab.evaluate("document.getElementById('heat').dispatchEvent(new MouseEvent('dblclick'))")
    assert text_of(tab, "heat-steps").startswith("steps 100 to 159 from left to right, 12 of 12")


def test_the_keyboard_moves_and_zooms(run: RunData, tab: Tab) -> None:
    tab.evaluate("document.getElementById('heat').focus()")
    mouse(tab, "mouseMoved", box_of(tab, "heat")["x"] + 1, box_of(tab, "heat")["y"] + 1)
    for _ in range(3):
        key(tab, "ArrowRight")
    key(tab, "ArrowDown")
    text = text_of(tab, "heat-readout")
    assert text.startswith("rank 1 on node00, step 103:")
    assert ms_in(text) == pytest.approx(cell_ms(run, 1, 3), rel=0.006)
    key(tab, "+")
    assert " 6 of 12 ranks" in text_of(tab, "heat-steps")
    for _ in range(12):
        key(tab, "ArrowDown")
    assert text_of(tab, "heat-readout").startswith("rank 11 on node01")
    key(tab, "0")
    assert " 12 of 12 ranks" in text_of(tab, "heat-steps")


def test_every_layer_and_order_can_be_chosen(run: RunData, tab: Tab) -> None:
    choose = """(() => {{
        const select = document.getElementById("{0}");
        select.value = "{1}";
        select.dispatchEvent(new Event("change"));
        return [...select.options].map(o => o.textContent);
    }})()"""
    layers = tab.evaluate(choose.format("heat-layer", 0))
    assert set(layers) == {"the step without waiting stages", "the step", *STAGES}
    tab.evaluate(choose.format("heat-layer", layers.index("forward")))
    tab.evaluate("new Promise(done => setTimeout(done, 50))")
    box = box_of(tab, "heat")
    mouse(tab, "mouseMoved", box["x"] + 1, box["y"] + 1)
    forward = run.totals[0, 0, 1] * 1e-6
    assert ms_in(text_of(tab, "heat-readout")) == pytest.approx(forward, rel=0.006)
    tab.evaluate(choose.format("heat-layer", 0))
    tab.evaluate(choose.format("heat-order", "excess"))
    mouse(tab, "mouseMoved", box["x"] + 2, box["y"] + 2)
    assert text_of(tab, "heat-readout").startswith("rank 1 ")
    tab.evaluate(choose.format("heat-order", "rank"))


def test_the_scale_has_plain_numbers(tab: Tab) -> None:
    """Rank 1 waits a hundred times as long for its input as the others."""
    choose = """(() => {
        const select = document.getElementById("heat-layer");
        const at = [...select.options].findIndex(o => o.textContent === "%s");
        select.value = at;
        select.dispatchEvent(new Event("change"));
    })()"""
    tab.evaluate(choose % "input")
    tab.wait_for("/at least \\d{3} times/.test(document.getElementById('heat-scale').textContent)",
                 "the scale of the input")  # fmt: skip
    tab.evaluate(choose % "the step without waiting stages")


@pytest.mark.parametrize("slow", [(417,), tuple(range(408, 416))])
def test_among_a_thousand_ranks_the_bad_ones_are_seen(
    slow: tuple[int, ...], tmp_path: Path
) -> None:
    """On 460 rows of pixels, where two or three ranks share one."""
    run = slow_loader(1000, 120, slow)
    with opened(page_of(run), tmp_path) as tab:
        box = box_of(tab, "heat")
        reds = tab.evaluate("""(() => {
            const canvas = document.getElementById("heat");
            const { data, width, height } =
                canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            const rows = [];
            for (let y = 0; y < height; y += 1) {
                const at = 4 * (y * width + Math.floor(0.9 * width));
                if (data[at] > 1.5 * data[at + 2]) rows.push(y / height);
            }
            return rows;
        })()""")
    assert box["height"] < 500
    assert reds, "no slow rank is seen"
    lowest, highest = min(slow) / 1000, (max(slow) + 1) / 1000
    assert lowest - 0.005 <= min(reds) <= max(reds) <= highest + 0.005


# --- the timeline ---


def test_the_timeline_tells_its_slices(run: RunData, tab: Tab) -> None:
    tab.evaluate("document.getElementById('timeline').focus()")
    key(tab, "ArrowRight")
    text = text_of(tab, "timeline-readout")
    assert text.startswith("rank 1, input: ")
    assert ms_in(text) == pytest.approx(run.totals[1, -1, 0] * 1e-6, rel=0.006)
    assert "Step 159" in text_of(tab, "timeline-title")


# --- tables, theme, paper, small screens ---


def column_of(tab: Tab, table: str, place: int) -> list[str]:
    values: list[str] = tab.evaluate(
        f"[...document.querySelectorAll('#{table} tbody tr')].filter(r => !r.hidden)"
        f".map(r => r.cells[{place}].textContent)"
    )
    return values


def test_tables_sort_by_value_and_filter(run: RunData, tab: Tab) -> None:
    click = "document.querySelectorAll('#ranks th button')[{}].click()"
    tab.evaluate(click.format(3))  # works
    work = run.step_ns.mean(1) - (
        run.totals[:, :, BACKWARD] - run.totals[:, :, BACKWARD].min(0)
    ).mean(1)
    expected = [str(rank) for rank in np.argsort(-work, kind="stable")]
    assert column_of(tab, "ranks", 0) == expected
    assert tab.evaluate("document.querySelectorAll('#ranks th')[3].ariaSort") == "descending"
    tab.evaluate(click.format(0))
    tab.evaluate(click.format(0))
    assert column_of(tab, "ranks", 0) == [str(rank) for rank in range(RANKS)]
    tab.evaluate("""(() => {
        const field = document.querySelector("input[type=search]");
        field.value = "node01";
        field.dispatchEvent(new Event("input"));
    })()""")
    assert column_of(tab, "ranks", 0) == ["8", "9", "10", "11"]
    tab.evaluate("""(() => {
        const field = document.querySelector("input[type=search]");
        field.value = "";
        field.dispatchEvent(new Event("input"));
    })()""")
    assert len(column_of(tab, "ranks", 0)) == RANKS


def ground(tab: Tab) -> list[int]:
    text = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    return [int(part) for part in re.findall(r"\d+", text)][:3]


def test_light_dark_and_paper(tab: Tab) -> None:
    for scheme, is_dark in (("dark", True), ("light", False)):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        tab.call("Emulation.setEmulatedMedia", media="screen", features=features)
        assert (sum(ground(tab)) < 300) == is_dark
    tab.evaluate("document.getElementById('theme').click()")
    assert sum(ground(tab)) < 300
    tab.call("Emulation.setEmulatedMedia", media="print")
    assert ground(tab) == [255, 255, 255]
    tab.call("Emulation.setEmulatedMedia", media="")
    tab.evaluate("document.getElementById('theme').click()")


def test_on_paper_long_tables_are_capped(tmp_path: Path) -> None:
    with opened(page_of(slow_loader(100, 20)), tmp_path) as tab:
        tab.call("Emulation.setEmulatedMedia", media="print")
        rows = (
            "[...document.querySelectorAll('#ranks tbody tr')].filter(r => r.offsetHeight).length"
        )
        assert tab.evaluate(rows) == 40


def test_it_is_readable_at_400_pixels(run: RunData, tmp_path: Path) -> None:
    with opened(page_of(run), tmp_path, width=400) as tab:
        assert tab.evaluate("document.documentElement.scrollWidth") <= 400
        size = "parseFloat(getComputedStyle(document.getElementById('verdict')).fontSize)"
        assert tab.evaluate(size) >= 12
        cell = "document.querySelector('#stages tbody td').offsetWidth"
        assert tab.evaluate(cell) > 60  # names are not broken into single letters


@pytest.mark.slow
def test_it_can_be_used_by_everybody(run: RunData, tmp_path: Path) -> None:
    """By the rules of axe-core, in light and in dark."""
    with opened(page_of(run), tmp_path) as tab:
        assert violations(tab) == []


def test_the_verdict_is_copied_as_markdown(run: RunData, tab: Tab) -> None:
    tab.call("Browser.grantPermissions", permissions=["clipboardReadWrite"])
    tab.evaluate("document.getElementById('copy').click()")
    tab.wait_for("document.getElementById('copy').textContent === 'copied'", "the copy")
    text = tab.evaluate("navigator.clipboard.readText()")
    assert text == "**bound by input** on `rank 1`"


# --- Perfetto ---

STAND_IN = b"""<!DOCTYPE html><title>waiting</title><script>
let pings = 0;
addEventListener("message", async (event) => {
  if (event.data === "PING") { pings += 1; if (pings === 3) event.source.postMessage("PONG", "*"); }
  else if (event.data.perfetto) {
    const { buffer, title } = event.data.perfetto;
    await fetch("/got?" + title, { method: "POST", body: buffer });
  }
});
</script>"""


class StandIn(http.server.BaseHTTPRequestHandler):
    """Answers as Perfetto's window does, and keeps the trace that it is handed."""

    got: dict[str, bytes]
    arrived: threading.Event

    def do_GET(self) -> None:
        self._answer(STAND_IN)

    def do_POST(self) -> None:
        self.got[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(b"")
        self.arrived.set()

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def viewer() -> Iterator[tuple[str, type[StandIn]]]:
    handler = type("Handler", (StandIn,), {"got": {}, "arrived": threading.Event()})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", handler
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_perfetto_gets_the_trace(
    run: RunData, tmp_path: Path, viewer: tuple[str, type[StandIn]]
) -> None:
    address, handler = viewer
    trace = json.dumps({"traceEvents": [{"name": "é" * 1000}]}).encode()
    with opened(page_of(run, trace, address), tmp_path) as tab:
        script = "document.getElementById('perfetto').click()"
        tab.call("Runtime.evaluate", expression=script, userGesture=True)
        assert handler.arrived.wait(30), text_of(tab, "perfetto-status")
    assert handler.got == {"/got?step.json": trace}


def test_without_a_window_the_trace_is_offered(run: RunData, tmp_path: Path) -> None:
    trace = b'{"traceEvents": []}'
    with opened(page_of(run, trace, "http://127.0.0.1:1/"), tmp_path) as tab:
        tab.evaluate("window.open = () => null; document.getElementById('perfetto').click()")
        tab.wait_for("document.querySelector('#perfetto-status a') !== null", "the offer")
        got = tab.evaluate(
            "fetch(document.querySelector('#perfetto-status a').href).then(r => r.text())"
            ".catch(() => document.querySelector('#perfetto-status a').download)"
        )
    assert got in (trace.decode(), "step.json")  # the policy lets no script fetch


# --- cells, times and colours ---


@pytest.mark.parametrize("shape", [(1, 2), (4, 200), (300, 300)])
def test_cells_are_off_by_less_than_a_thousandth(shape: tuple[int, int]) -> None:
    """Also beside one step of 41 s, and where cells are missing."""
    rng = np.random.default_rng(3)
    cells = 16.0 * np.exp(rng.normal(0, 1, shape))
    cells.flat[0] = 41_000.0
    cells.flat[-1] = np.nan
    coded = code_cells(cells)
    planes = np.frombuffer(zlib.decompress(base64.b64decode(coded.data)), np.uint8).astype(int)
    codes = (planes[: planes.size // 2] << 8) | planes[planes.size // 2 :]
    decoded = np.where(codes > 0, coded.low_ms * coded.ratio ** (codes - 1.0), np.nan)
    np.testing.assert_allclose(decoded.reshape(shape), cells, rtol=1e-3)
    assert coded.error < 1e-3


def test_a_million_cells_stay_below_the_limit() -> None:
    run = slow_loader(1000, 1000)
    text = page_of(run)
    cells = re.findall(r'"data":"([^"]+)"', text)
    assert sum(map(len, cells)) < 2.7e6
    assert len(text) - sum(map(len, cells)) < 0.5e6


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0.0004, "0.4 µs"), (0.9999, "1 ms"), (1.0, "1 ms"), (999.96, "1 s"), (1234.0, "1.23 s"),
     (90_000.0, "90 s"), (float("nan"), ""), (-2.5, "-2.5 ms")],
)  # fmt: skip
def test_times_have_three_digits_in_their_unit(ms: float, text: str) -> None:
    assert times(ms) == text


@pytest.mark.parametrize("name", [*STAGES, "untimed", "h2d", "loss", "x", "iter/forward", "\ud800"])
def test_text_on_a_stage_can_be_read(name: str) -> None:
    """With the contrast of 4.5 that WCAG 2.1 asks for."""
    colour = stage_colour(name)
    grounds = sorted((luminance(colour), luminance(text_colour(colour))))
    assert (grounds[1] + 0.05) / (grounds[0] + 0.05) >= 4.5


def test_an_inner_stage_has_the_colour_of_its_name_in_the_timeline(run: RunData) -> None:
    nested = replace(run, stages=[f"iter/{stage}" for stage in run.stages])
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page_of(nested))
    assert found is not None
    data = json.loads(found[1])
    for path, name in zip(nested.stages, data["timeline"]["stages"], strict=True):
        assert data["colors"][name][0] == stage_colour(path), path
