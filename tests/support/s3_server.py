"""A server of S3 on 127.0.0.1, moto's, which can be stopped, be full, or answer slowly."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from .live_ranks import wait_until
from .ranks import free_port

BUCKET = "runs"
SLOW_S = 1.0

# Puts are as the file `mode` says; a bucket is there from the beginning on.
_PROGRAM = f"""
import sys, time
from pathlib import Path
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
app = DomainDispatcherApplication(create_backend_app)
mode = Path(sys.argv[2])

def serve(environment, start):
    now = mode.read_text() if environment["REQUEST_METHOD"] == "PUT" else ""
    if now.isdecimal():
        environment["wsgi.input"].read(int(environment.get("CONTENT_LENGTH") or 0))
        start(now + " No", [("Content-Length", "0")])
        return [b""]
    if now == "slow":
        time.sleep({SLOW_S})
    return app(environment, start)

make_server("127.0.0.1", int(sys.argv[1]), serve, threaded=True).serve_forever()
"""


class S3Server:
    """environment: with which programs find it. Each start is of an empty one."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.place = f"s3://{BUCKET}/team/run"
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}", "AWS_ACCESS_KEY_ID": "one",
            "AWS_SECRET_ACCESS_KEY": "two", "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "1", "AWS_EC2_METADATA_DISABLED": "true", "HOME": str(folder),
        }  # fmt: skip
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.answer("")

    def answer(self, mode: str) -> None:
        """How it answers puts: a status, "slow", or "" as it should."""
        new = self._folder / "mode.new"
        new.write_text(mode)
        new.rename(self._folder / "mode")

    def start(self) -> None:
        words = [sys.executable, "-c", _PROGRAM, str(self.port), str(self._folder / "mode")]
        with open(self._folder / "s3.log", "ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log, env=self._variables())
        wait_until(self._has_bucket, 120.0)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def names(self) -> list[str]:
        """The last parts of the names of all objects, at most 1,000."""
        from urllib.request import urlopen

        address = f"http://127.0.0.1:{self.port}/{BUCKET}?list-type=2"
        with urlopen(address, timeout=30) as answer:
            return re.findall(r"<Key>[^<]*?([^</]*)</Key>", answer.read().decode())

    def _variables(self) -> dict[str, str]:
        return {**os.environ, **self.environment}

    def _has_bucket(self) -> bool:
        from urllib.error import URLError
        from urllib.request import Request, urlopen

        address = f"http://127.0.0.1:{self.port}/{BUCKET}"
        try:
            with urlopen(Request(address, method="PUT"), timeout=30):
                return True
        except URLError:
            return False
