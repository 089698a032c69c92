"""The page of a run in headless Chromium: until it is seen, until all is drawn, and its memory.

The run is simulated: 1,000 ranks and 1,000 steps, a million cells. The bounds are those that the
page promises; times are the page's own clock, from its navigation on, and the processor time of its
main thread, which a busy machine does not lengthen.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.harness import Claim, NotMeasured, Row
from tests.support.page_runs import page_of, slow_loader
from tools.perfetto_ui import Page, find_browser

# Noted by a script of ours that runs before those of the page.
NOTE = """
new MutationObserver((_, seen) => {
  if (document.documentElement?.dataset.drawn === 'all') {
    seen.disconnect();
    requestAnimationFrame(() => setTimeout(() => { window.drawnAt = performance.now(); }));
  }
}).observe(document, {attributes: true, subtree: true});
"""
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


def run(smoke: bool) -> list[Row]:
    browser = find_browser()
    if browser is None:
        return [NotMeasured("the page", "chromium (Debian package chromium)")]
    ranks, steps = (20, 30) if smoke else (1000, 1000)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "page.html")
        path.write_text(page_of(slow_loader(ranks, steps)), encoding="utf-8")
        painted_ms, drawn_ms, main_ms, memory_mb = opened(browser, path)
        page_mb = path.stat().st_size / 1e6
    what = f"the page of {ranks:,} ranks, {steps:,} steps"
    return [
        Claim(f"{what}: first paint", painted_ms, "promised", 1000.0, "ms", 1),
        Claim(f"{what}: all drawn", drawn_ms, "promised", 2000.0, "ms", 1),
        Claim(f"{what}: main thread until then", main_ms, "promised", 2000.0, "ms", 1),
        Claim(f"{what}: renderer", memory_mb, "promised", 300.0, "MB", 1),
        Claim(f"{what}: file", page_mb, "promised", 3.2, "MB", 1),
    ]


def opened(browser: str, path: Path) -> tuple[float, float, float, float]:
    """First paint, all drawn and the main thread's processor time, in ms, and the resident memory
    of the renderer, in MB."""
    with Page(browser, 1200, 1000) as page:
        page.call("Page.enable")
        page.call("Performance.enable", timeDomain="threadTicks")
        page.call("Page.addScriptToEvaluateOnNewDocument", source=NOTE)
        page.call("Page.navigate", url=path.as_uri())
        drawn_ms = page.wait_for("window.drawnAt", "the page")
        painted_ms = page.wait_for(PAINT, "its first paint")
        metrics = page.call("Performance.getMetrics")["metrics"]
        (main_s,) = (one["value"] for one in metrics if one["name"] == "TaskDuration")
        return painted_ms, drawn_ms, 1000 * main_s, renderer_mb()


def renderer_mb() -> float:
    """The largest renderer; of memory that processes share, its part."""
    most = 0
    for process in Path("/proc").iterdir():
        try:
            command = (process / "cmdline").read_bytes()
            if b"--type=renderer" not in command or b"perfetto_ui_" not in command:
                continue
            rollup = (process / "smaps_rollup").read_text()
        except OSError:  # it has ended
            continue
        kilobytes = next(line.split()[1] for line in rollup.splitlines() if line.startswith("Pss:"))
        most = max(most, int(kilobytes))
    return most / 1000
