"""The built site: its index has every public name, and a newcomer finds the way through it."""

from __future__ import annotations

import contextlib
import functools
import http.server
import importlib
import inspect
import runpy
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tools.perfetto_ui import Page, UIError, find_browser

from ..conftest import ROOT
from ..test_public_classes import public_modules

pytest.importorskip("torch", reason="torch is not installed")
from my_utils.utils import DebugLayer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Commands: docs/command-line.md has them.
NO_API = {"my_utils.cli"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sphinx", reason="sphinx is not installed: make site")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "-c", "docs/site",
         "-d", str(folder / "doctrees"), "docs", str(folder / "site")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "site"


# --- the index ---


def index_of(site: Path) -> set[str]:
    """The names in objects.inv: four lines of text, then lines that zlib compressed."""
    data = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    lines = zlib.decompress(data).decode().splitlines()
    return {name for name, kind in (line.split()[:2] for line in lines) if kind.startswith("py:")}


def public_values() -> list[tuple[Any, list[str]]]:
    """Each function, class and object of the public modules, with its public names. Of numbers and
    texts the modules say what they are."""
    found: dict[int, tuple[Any, list[str]]] = {}
    for name in public_modules():
        if name in NO_API:
            continue
        module = importlib.import_module(name)
        for public in getattr(module, "__all__", ()):
            value = getattr(module, public)
            if not isinstance(value, int | str | tuple) and value is not DebugLayer:
                found.setdefault(id(value), (value, []))[1].append(f"{name}.{public}")
    return list(found.values())


def methods_of(cls: type) -> Iterator[str]:
    """The public methods that are this project's, also of private bases and of types in C."""
    internal = runpy.run_path(str(ROOT / "docs" / "site" / "conf.py"))["CALLED_BY_PYTHON"]
    for name in dir(cls):
        owner = next((base for base in cls.__mro__ if name in vars(base)), None)
        if name.startswith("_") or owner is None:
            continue
        if owner.__module__ == "my_utils._core" and name in internal:
            continue
        if owner.__module__.startswith("my_utils") and inspect.isroutine(getattr(cls, name)):
            yield name


def test_every_public_name_is_in_the_index(site: Path) -> None:
    index = index_of(site)
    missing = [names for _, names in public_values() if not index & set(names)]
    assert missing == []


def test_every_public_method_is_in_the_index_and_says_what_it_does(site: Path) -> None:
    index = index_of(site)
    missing, silent = [], []
    for value, names in public_values():
        if not inspect.isclass(value) or not value.__module__.startswith("my_utils"):
            continue
        for method in methods_of(value):
            if not index & {f"{name}.{method}" for name in names}:
                missing.append(f"{names[0]}.{method}")
            if not inspect.getdoc(getattr(value, method)):
                silent.append(f"{value.__name__}.{method}")
    assert silent == []
    assert missing == []


def test_names_of_the_documents_are_in_the_index(site: Path) -> None:
    """Those that users looked for in vain."""
    last_two = {".".join(name.split(".")[-2:]) for name in index_of(site)}
    assert last_two >= {
        "utils.DebugLayer", "MyTimer.register_stage", "TimeManager.timer", "TimeManager.clear",
        "TimeData.sum", "TimeData.count", "TimeData.mean", "TimeData.rank_count",
        "CaptureController.on_enter",
        "CompareWithCPU.step", "NanInfTracker.step", "GatheredTime.items", "NoOpMyTimer.start",
        "logger_util.LOGGER", "utils.global_timer", "memory_snapshot.global_snapshotter",
    }  # fmt: skip


def test_what_programs_read_is_beside_the_pages(site: Path) -> None:
    for name in ("llms.txt", "for-assistants.md", "runs/verdict.md", "schema/why.json"):
        assert (site / name).read_bytes() == (ROOT / "docs" / name).read_bytes()


# --- a newcomer's walk ---

PICTURES = ROOT / "build" / "site-walk"


class Server(http.server.SimpleHTTPRequestHandler):
    """The site in the folder /docs of its host, with 404.html for what is not there."""

    def translate_path(self, path: str) -> str:
        return super().translate_path(path.removeprefix("/docs"))

    def send_error(self, code: int, *_: object) -> None:
        body = (Path(self.directory) / "404.html").read_bytes()
        self.send_response(code)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    handler = functools.partial(Server, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/docs/"
        server.shutdown()
        thread.join()


class Walk:
    """A browser of a width and a colour scheme; each page that it comes to is a picture."""

    def __init__(self, page: Page, name: str, scheme: str, width: int) -> None:
        self.page, self._name, self._width, self._pictures = page, name, width, 0
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        page.call("Emulation.setEmulatedMedia", features=features)

    def goes_to(self, url: str) -> None:
        self.page.call("Page.navigate", url=url)
        self._arrived(f"location.href === {url!r}")

    def clicks(self, text: str, inside: str = "article") -> None:
        """The first link there with this text."""
        before = self.page.evaluate("location.href")
        self._does(
            f"[...document.querySelectorAll({inside + ' a'!r})]"
            f".find(one => one.textContent.trim() === {text!r}).click()"
        )
        self._arrived(f"location.href !== {before!r}")

    def searches(self, text: str) -> None:
        form = "document.querySelector('form[action$=\"search.html\"]')"
        self._does(f"{form}.q.value = {text!r}; {form}.submit()")
        self._arrived("location.pathname.endsWith('/search.html')")
        results = "document.querySelectorAll('ul.search li a').length"
        self.page.wait_for(results, "results of the search")

    def heading(self) -> str:
        found: str = self.page.evaluate("document.querySelector('h1').innerText")
        return found.rstrip("#¶").strip()

    def looks(self) -> None:
        """Takes a picture. Nothing is wider than the window, and all pictures are there."""
        self.page.wait_for("[...document.images].every(one => one.complete)", "pictures")
        assert self.page.evaluate("[...document.images].every(one => one.naturalWidth > 0)")
        assert self.page.evaluate("document.documentElement.scrollWidth") <= self._width
        PICTURES.mkdir(parents=True, exist_ok=True)
        self._pictures += 1
        picture = PICTURES / f"{self._name}-{self._pictures}.png"
        picture.write_bytes(self.page.screenshot())

    def _does(self, action: str) -> None:
        """What leaves the page: afterwards, for the browser's answer comes from it."""
        self.page.evaluate(f"void setTimeout(() => {{ {action} }})")

    def _arrived(self, condition: str) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(UIError):  # the page goes while it is asked
                if self.page.evaluate(f"{condition} && document.readyState === 'complete'"):
                    return
            time.sleep(0.05)
        raise AssertionError(f"not within 60 s: {condition}")


@pytest.mark.parametrize(
    ("name", "scheme", "width"),
    [("light", "light", 1280), ("dark", "dark", 1280), ("narrow", "light", 400)],
)
def test_a_newcomer_finds_the_way(name: str, scheme: str, width: int, address: str) -> None:
    browser = find_browser()
    if browser is None:
        pytest.skip("no chromium on this machine (Debian package chromium)")
    with Page(browser, width, 900) as page:
        walk = Walk(page, name, scheme, width)
        walk.goes_to(f"{address}index.html")
        assert walk.heading() == "my_utils"
        headings = page.evaluate("[...document.querySelectorAll('h2')].map(one => one.innerText)")
        assert [one.rstrip("#¶").strip() for one in headings] == [
            "Install", "A first example", "Tasks", "Scripts",
        ]  # fmt: skip
        assert is_dark(page) == (scheme == "dark")
        walk.looks()

        walk.clicks("Record a run")
        assert walk.heading() == "Record a run without changing its script"
        walk.looks()

        walk.searches("register_stage")
        walk.looks()
        walk.clicks("my_utils.utils.MyTimer.register_stage", "ul.search")
        entry = page.evaluate("document.querySelector(':target').innerText")
        assert entry.startswith("register_stage(")
        top = "document.querySelector(':target').getBoundingClientRect().top"
        page.wait_for(f"{top} >= 0 && {top} < innerHeight / 2", "the page scrolls to the entry")
        walk.looks()

        walk.goes_to(f"{address}runs/no-such-page.html")
        assert walk.heading() == "No such page"
        walk.looks()
        walk.searches("hang")
        walk.goes_to(f"{address}no-such-page.html")
        walk.clicks("The front page", "body")
        assert page.evaluate("location.href") == f"{address}index.html"


def is_dark(page: Page) -> bool:
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(map(int, colour.strip("rgb()").split(","))) < 3 * 128
