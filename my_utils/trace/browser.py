"""Opens a trace in the Perfetto UI of the user's browser, from 127.0.0.1. Internal."""

from __future__ import annotations

import http.server
import threading
import webbrowser
from pathlib import Path

from ..core.command_line import say

UI = "https://ui.perfetto.dev"
PORT = 9001  # the only one that the UI's content policy lets a page on 127.0.0.1 have


def serve(path: Path, port: int = PORT, show: bool = True, timeout_s: float = 600.0) -> bool:
    """Serves the file until it was fetched once; False when nobody came within `timeout_s`."""
    fetched = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def _start(self) -> bool:
            if self.path.lstrip("/") != path.name:
                self.send_error(404)
                return False
            self.send_response(200)
            self.send_header("Access-Control-Allow-Origin", UI)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(path.stat().st_size))
            self.end_headers()
            return True

        def do_HEAD(self) -> None:
            self._start()

        def do_GET(self) -> None:
            if self._start():
                with open(path, "rb") as handle:
                    while chunk := handle.read(1 << 20):
                        self.wfile.write(chunk)
                fetched.set()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        address = f"{UI}/#!/?url=http://127.0.0.1:{server.server_port}/{path.name}"
        say("trace", f"open {address}")
        if show:
            webbrowser.open(address)
        try:
            return fetched.wait(timeout_s)
        finally:
            server.shutdown()
