"""Writes the sources of the GPU kernels as one C file, so that the module carries them.

As a program: `python3 csrc/embed.py build/kernel_sources.c`. What it writes defines the tables that
csrc/engine/kernel_sources.h declares: every .cu file of csrc/engine/kernels, and the headers that
they include. It needs the standard library only.
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

ENGINE = Path(__file__).resolve().parent / "engine"
FOLDERS = [ENGINE / "kernels", ENGINE]
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)

# The emulation of a GPU on the processor, which only a C compiler reads.
LEFT_OUT = {"gpu_emulation.h"}


def find(name: str) -> Path:
    for folder in FOLDERS:
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(f"{name}, included by a kernel, is in none of {FOLDERS}")


def kernel_files() -> list[Path]:
    """The kernels and all headers that they include, each once, by name."""
    waiting = sorted((ENGINE / "kernels").glob("*.cu"))
    found: dict[str, Path] = {}
    while waiting:
        path = waiting.pop()
        if path.name in found:
            continue
        found[path.name] = path
        names = INCLUDE.findall(path.read_text(encoding="utf-8"))
        waiting += [find(name) for name in names if name not in LEFT_OUT]
    return [found[name] for name in sorted(found)]


def literal(line: str) -> str:
    escaped = line.replace("\\", "\\\\").replace('"', '\\"').replace("?", "\\?")
    return f'        "{escaped}\\n"'


def c_source(files: list[Path]) -> str:
    """The C file that holds the text of `files`."""
    digest = hashlib.sha256()
    out = [
        '#include "kernel_sources.h"',
        "",
        "const struct mu_kernel_source mu_kernel_sources[] = {",
    ]
    for path in files:
        text = path.read_text(encoding="utf-8")
        digest.update(f"{path.name}\0{len(text)}\0{text}".encode())
        out += ["    {", f'        "{path.name}",', *map(literal, text.splitlines()), "    },"]
    out += [
        "};",
        "",
        f"const int mu_kernel_source_count = {len(files)};",
        f'const char mu_kernel_sources_digest[] = "{digest.hexdigest()[:32]}";',
        "",
    ]
    return "\n".join(out)


def write(path: Path) -> None:
    """Writes the C file; leaves one that is right already alone, so that make sees no change."""
    text = c_source(kernel_files())
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
