"""axe-core, which checks a page by the rules of accessibility. npm installs it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tools.perfetto_ui import Page

VERSION = "4.10.3"
FOLDER = Path(__file__).resolve().parent.parent.parent / "build" / "npm"


def axe_source() -> str:
    """The script; installs it at the first call, and skips where npm cannot."""
    script = FOLDER / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists():
        if shutil.which("npm") is None:
            pytest.skip("no npm on this machine, which would install axe-core (Debian package npm)")
        FOLDER.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--silent", f"axe-core@{VERSION}"]
        done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"npm could not install axe-core: {done.stderr.strip()[-200:]}")
    return script.read_text()


def violations(tab: Page) -> list[tuple[str, str, str]]:
    """What breaks the rules in the open page, light and dark: scheme, rule and element."""
    found = []
    tab.evaluate(axe_source())
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        tab.call("Emulation.setEmulatedMedia", features=features)
        broken = tab.evaluate("axe.run().then(r => r.violations.map(v => [v.id, v.nodes[0].html]))")
        found += [(scheme, rule, element) for rule, element in broken]
    return found
