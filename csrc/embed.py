"""Writes the sources of the GPU kernels as one C file, so that the module carries them.

As a program: `python3 csrc/embed.py build/kernel_sources.c`. What it writes defines the tables that
csrc/engine/gpu_kernels/kernel_sources.h declares: every .cu file of the folder `kernels` there, and
the headers that they include, each under the name that the #include lines give it. It needs the
standard library only.
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

ENGINE = Path(__file__).resolve().parent / "engine"
KERNELS = ENGINE / "gpu_kernels" / "kernels"
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)

# The emulation of a GPU on the processor, which only a C compiler reads.
LEFT_OUT = {"tests/gpu_kernels/gpu_emulation.h"}


def kernel_files() -> dict[str, str]:
    """The text of the kernels by file name, and of all headers that they include by their path.

    FileNotFoundError where there is no kernel, or not a header that is included.
    """
    kernels = sorted(KERNELS.glob("*.cu"))
    if not kernels:
        raise FileNotFoundError(f"no kernels in {KERNELS}")
    found = {path.name: path.read_text(encoding="utf-8") for path in kernels}
    waiting = list(found.values())
    while waiting:
        for name in INCLUDE.findall(waiting.pop()):
            if name not in found and name not in LEFT_OUT:
                found[name] = (ENGINE / name).read_text(encoding="utf-8")
                waiting.append(found[name])
    return dict(sorted(found.items()))


def literal(line: str) -> str:
    escaped = line.replace("\\", "\\\\").replace('"', '\\"').replace("?", "\\?")
    return f'        "{escaped}\\n"'


def c_source(files: dict[str, str]) -> str:
    """The C file that holds the text of `files`."""
    digest = hashlib.sha256()
    out = [
        '#include "gpu_kernels/kernel_sources.h"',
        "",
        "const struct mu_kernel_source mu_kernel_sources[] = {",
    ]
    for name, text in files.items():
        digest.update(f"{name}\0{len(text)}\0{text}".encode())
        out += ["    {", f'        "{name}",', *map(literal, text.splitlines()), "    },"]
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
