"""A TCP relay that holds up what passes through it, each direction by delays of its own."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable

Delay = Callable[[], float]


class DelayRelay:
    """Listens on loopback and passes everything on to `target`, `delay()` seconds later."""

    def __init__(self, target: tuple[str, int], there: Delay, back: Delay) -> None:
        self._target, self._there, self._back = target, there, back
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            for source, sink, delay in ((near, far, self._there), (far, near, self._back)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                held: queue.Queue[tuple[float, bytes]] = queue.Queue()
                threading.Thread(target=self._take, args=(source, held, delay), daemon=True).start()
                threading.Thread(target=self._pass, args=(sink, held), daemon=True).start()

    @staticmethod
    def _take(source: socket.socket, held: queue.Queue[tuple[float, bytes]], delay: Delay) -> None:
        data = b"x"
        while data:
            try:
                data = source.recv(4096)
            except OSError:
                data = b""
            held.put((time.monotonic() + delay(), data))

    @staticmethod
    def _pass(sink: socket.socket, held: queue.Queue[tuple[float, bytes]]) -> None:
        while True:
            due, data = held.get()
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)
            except OSError:
                return
