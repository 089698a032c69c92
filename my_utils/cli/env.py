"""`my_utils env`: shows what is installed.

Nothing is imported to find out: versions come from what pip wrote down.
"""

from __future__ import annotations

import glob
import json
import os
import platform
import re
import sys
from importlib import metadata
from typing import Final, Literal, TypedDict

from ..core.command_line import CommandParser, add_json, add_quiet, parser, run_cli
from ..core.run_files.newest import find_run
from ..core.terminal import wants_color

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


DRIVER_FILE = "/proc/driver/nvidia/version"
SCHEMA_VERSION: Final = 1

_REQUIREMENT = re.compile(r"\s*([\w.-]+)\s*(?:\[([^\]]*)\])?\s*([^;]*)")
_VARIABLE = re.compile(r"MY_UTILS_\w")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")


class InstallData(TypedDict):
    """A version, and the folder or the program that it is of."""

    version: str
    path: str


class CudaData(TypedDict):
    """What is there of CUDA.

    driver: whether there is a CUDA driver.
    reason: why not, else empty.
    devices: how many the system lists.
    """

    driver: bool
    reason: str
    driver_version: str | None
    devices: int


class NewestRunData(TypedDict):
    """The newest run here.

    how: the way it was found, or why there is none.
    """

    path: str | None
    how: str


class PackagesData(TypedDict):
    """Which packages of a list are there.

    installed: versions by package.
    missing: requirements that are not met, as pip takes them.
    """

    installed: dict[str, str]
    missing: list[str]


class EnvironmentData(TypedDict):
    """What is installed and what is set.

    torch: its version, null if it is not installed.
    logs: the newest run here.
    variables: those that are set and begin with MY_UTILS_.
    requires: what my_utils always needs.
    extras: what each extra needs.
    """

    version: Literal[1]
    my_utils: InstallData
    python: InstallData
    system: str
    torch: str | None
    cuda: CudaData
    logs: NewestRunData
    variables: dict[str, str]
    requires: PackagesData
    extras: dict[str, PackagesData]


def environment() -> EnvironmentData:
    """What is installed and what is set, as plain data that goes into JSON. Later versions only add
    keys.

    >>> environment()["version"]
    1
    """
    from .. import __version__

    wanted = _requirements()
    extras = sorted(name for name in wanted if name not in ("", "all"))
    return {
        "version": SCHEMA_VERSION,
        "my_utils": {"version": __version__, "path": os.path.dirname(os.path.dirname(__file__))},
        "python": {"version": platform.python_version(), "path": sys.executable},
        "system": platform.platform(),
        "torch": _find_version("torch"),
        "cuda": _cuda(),
        "logs": _logs(),
        "variables": {
            name: os.environ[name] for name in sorted(os.environ) if _VARIABLE.match(name)
        },
        "requires": _state(wanted.get("", [])),
        "extras": {name: _state(wanted[name]) for name in extras},
    }


def _find_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _logs() -> NewestRunData:
    try:
        found = find_run()
    except FileNotFoundError as error:
        return {"path": None, "how": str(error.strerror)}
    return {"path": os.path.abspath(found.path), "how": found.how}


def _cuda() -> CudaData:
    from .. import _core

    state = _core.cuda_state()
    return {
        "driver": bool(state["available"]),
        "reason": str(state["reason"]),
        "driver_version": _driver_version(),
        "devices": len(glob.glob("/dev/nvidia[0-9]*")),
    }


def _driver_version() -> str | None:
    try:
        with open(DRIVER_FILE, encoding="utf-8", errors="replace") as file:
            found = re.search(r"\b\d+\.\d+(?:\.\d+)?\b", file.readline())
    except OSError:
        return None
    return found[0] if found else None


# --- extras ---


def _requirements() -> dict[str, list[str]]:
    """The requirements of each extra; under "" those that are always there."""
    try:
        listed = metadata.requires("my_utils") or []
    except metadata.PackageNotFoundError:
        return {}
    wanted: dict[str, list[str]] = {}
    for text in listed:
        extra = _EXTRA.search(text)
        wanted.setdefault(extra[1] if extra else "", []).append(text)
    return wanted


def _state(requirements: Sequence[str]) -> PackagesData:
    """What is installed of these, with versions, and what is missing or too old, as pip would be
    asked for it."""
    installed: dict[str, str] = {}
    missing: list[str] = []
    for text in requirements:
        match = _REQUIREMENT.match(text)
        if match is None:
            continue
        name, bounds = match[1], match[3].strip()
        version = _find_version(name)
        if version is not None:
            installed[name] = version
        if version is None or _is_too_old(version, bounds):
            missing.append(f"{name}{bounds}")
    return {"installed": installed, "missing": missing}


def _is_too_old(version: str, bounds: str) -> bool:
    """Knows `>=` alone, which is all that we use.

    >>> _is_too_old("2.9.1+cu128", ">=2.10"), _is_too_old("2.10", ">=2.10")
    (True, False)
    """
    least = re.match(r">=\s*([\d.]+)", bounds)
    return least is not None and _numbers(version) < _numbers(least[1])


def _numbers(version: str) -> tuple[int, ...]:
    plain = re.match(r"[\d.]*", version)
    return tuple(int(part) for part in (plain[0] if plain else "").split(".") if part)


# --- the command line ---


def command_parser() -> CommandParser:
    chosen = parser(
        "env",
        "Shows what is installed, what each extra would add, whether there is a CUDA driver, and "
        "which run is the newest.",
        ["my_utils env", "my_utils env --json | jq .extras.report"],
        statuses="0  fine",
    )
    add_json(chosen, "print JSON")
    add_quiet(chosen, "without the table of extras")
    return chosen


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    return run_cli(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    chosen = command_parser().parse_args(argv)
    found = environment()
    if chosen.json:
        print(json.dumps(found, indent=1))
        return 0
    rows = [*_lines(found)]
    extras = [] if chosen.quiet else [*_extra_lines(found["extras"])]
    if sys.stdout.isatty():
        _draw(rows, extras, wants_color(sys.stdout, chosen.no_color))
    else:
        print("\n".join(_plain(rows)))
        if extras:
            print("\n".join(["", *_plain(extras)]))
    return 0


def _lines(found: EnvironmentData) -> Iterator[tuple[str, str]]:
    yield "my_utils", f"{found['my_utils']['version']}  {found['my_utils']['path']}"
    yield "python", f"{found['python']['version']}  {found['python']['path']}"
    yield "system", found["system"]
    yield "torch", found["torch"] or "not installed: pip install torch"
    cuda = found["cuda"]
    if cuda["driver"]:
        yield "CUDA driver", f"{cuda['driver_version'] or 'there'}, {cuda['devices']} devices"
    else:
        yield "CUDA driver", f"none ({cuda['reason']})"
    logs = found["logs"]
    yield "newest run", logs["path"] or f"none: {logs['how']}"
    yield from found["variables"].items()
    if missing := found["requires"]["missing"]:
        yield "missing", f"{' '.join(missing)}: pip install my_utils brings them"


def _extra_lines(extras: dict[str, PackagesData]) -> Iterator[tuple[str, str]]:
    if not extras:
        yield "extras", "not known: my_utils runs from a folder and is not installed"
    for name, state in extras.items():
        there = [f"{package} {version}" for package, version in state["installed"].items()]
        text = ", ".join(there)
        if state["missing"]:
            adds = f"not installed: {', '.join(state['missing'])}"
            text = f"{text}; {adds}" if text else adds
        yield f"[{name}]", text


def _plain(rows: Sequence[tuple[str, str]]) -> list[str]:
    widest = max((len(name) for name, _ in rows), default=0)
    return [f"{name:{widest}}  {text}" for name, text in rows]


def _draw(rows: Sequence[tuple[str, str]], extras: Sequence[tuple[str, str]], color: bool) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(no_color=not color, highlight=False)
    for part in filter(None, (rows, extras)):
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold", no_wrap=console.width >= 60)
        table.add_column(overflow="fold")
        for name, text in part:
            table.add_row(Text(name), Text(text, style="yellow" if "not installed" in text else ""))
        console.print(table)
        console.print()
