"""Certificates for a TLS server on loopback and its clients, made by openssl."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl is not installed"
)


@dataclass(frozen=True)
class Certificates:
    """PEM files: of the authority, of the server, of a client."""

    folder: Path

    def __post_init__(self) -> None:
        new_key = ["req", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj"]
        self._openssl(*new_key, "/CN=ca", "-x509", "-keyout", "ca.key", "-out", "ca.crt")
        (self.folder / "names").write_text(
            "subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1\nextendedKeyUsage=serverAuth,clientAuth\n"
        )
        for name in ("server", "client"):
            key, request = f"{name}.key", f"{name}.csr"
            self._openssl(*new_key, f"/CN={name}", "-keyout", key, "-out", request)
            signed = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names"]
            sign = ["x509", "-req", "-days", "2", *signed]
            self._openssl(*sign, "-in", request, "-out", f"{name}.crt")

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)

    def path(self, name: str) -> str:
        return str(self.folder / name)

    @property
    def for_server(self) -> tuple[str, ...]:
        """Arguments of etcd: TLS with client certificates."""
        return (
            f"--cert-file={self.path('server.crt')}",
            f"--key-file={self.path('server.key')}",
            f"--trusted-ca-file={self.path('ca.crt')}",
            "--client-cert-auth",
        )

    @property
    def for_client(self) -> dict[str, str]:
        """Arguments of `etcd_barrier`."""
        return {
            "ca_cert": self.path("ca.crt"),
            "cert_cert": self.path("client.crt"),
            "cert_key": self.path("client.key"),
        }
