"""An HTTP server on this host that keeps what is posted to it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from .schemas import loads_checked


class Inbox:
    """bodies: of the requests, in their order; types: their content types. statuses: of the first
    answers; 200 after them. Where `answers` is cleared, no answer comes until it is set."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.types: list[str] = []
        self.statuses: list[int] = []
        self.location = ""
        self.answers = threading.Event()
        self.answers.set()
        self.address = ""

    def messages(self) -> list[dict[str, Any]]:
        """Alerts, each checked by the schema."""
        return [loads_checked("live-alert", body.decode()) for body in list(self.bodies)]

    def events(self) -> list[tuple[str, str, list[int]]]:
        """Kind, event and ranks of each."""
        return [(one["kind"], one["event"], one["ranks"]) for one in self.messages()]


@contextmanager
def open_inbox() -> Iterator[Inbox]:
    inbox = Inbox()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            inbox.types.append(self.headers["Content-Type"])
            inbox.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            inbox.answers.wait()
            self.send_response(inbox.statuses.pop(0) if inbox.statuses else 200)
            if inbox.location:
                self.send_header("Location", inbox.location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *args: object) -> None:
            pass  # who asked has gone

    with Server(("127.0.0.1", 0), Handler) as server:
        inbox.address = f"http://127.0.0.1:{server.server_address[1]}/services/SECRET"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield inbox
        finally:
            inbox.answers.set()
            server.shutdown()
            thread.join()
