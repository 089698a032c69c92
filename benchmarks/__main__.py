"""Runs the benchmarks: ``python -m benchmarks [NAME ...] [--smoke] [--json FILE]``.

A row that is missed is measured again until its median stands still, or for five minutes; the
median counts. The rows of a benchmark are printed when it ends. ``--smoke`` runs each briefly, to
see that it works; its figures mean nothing. The exit status is 0 whether or not the bounds are met:
a noisy machine is not a failure.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import platform
import sys
from dataclasses import asdict
from functools import partial
from types import ModuleType
from typing import Any

import benchmarks
from benchmarks.harness import NotMeasured, Row, steadied


def names() -> list[str]:
    found = (module.name for module in pkgutil.iter_modules(benchmarks.__path__))
    return sorted(name.removeprefix("bench_") for name in found if name.startswith("bench_"))


HEADER = f"{'what':<44} {'ours':>12} {'peer':>12}  {'against':<28} {'ratio':>8}  wanted"


def table(rows: list[Row]) -> str:
    lines = []
    for claim in rows:
        if isinstance(claim, NotMeasured):
            lines.append(f"{claim.what:<44} not measured: {claim.needs}")
            continue
        ours, peer = (f"{value:.4g} {claim.unit:<2}" for value in (claim.ours, claim.peer))
        lines.append(
            f"{claim.what:<44} {ours:>12} {peer:>12}  {claim.peer_name:<28} "
            f"{claim.ratio:>8.3g}  {claim.wanted:<18} {claim.verdict}"
        )
    return "\n".join(lines)


def figures(row: Row) -> dict[str, Any]:
    if isinstance(row, NotMeasured):
        return asdict(row)
    return asdict(row) | {"ratio": row.ratio, "met": row.met}


def again(name: str, module: ModuleType) -> list[Row]:
    print(f"# {name}, again for the rows that were missed", file=sys.stderr, flush=True)
    rows: list[Row] = module.run(smoke=False)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(names())}")
    parser.add_argument("--smoke", action="store_true", help="run each briefly")
    parser.add_argument("--json", metavar="FILE", help="write the figures there as well")
    options = parser.parse_args()
    unknown = set(options.names) - set(names())
    if unknown:
        parser.error(f"no benchmark named {', '.join(sorted(unknown))}; there are {names()}")
    print(f"CPython {platform.python_version()}, {platform.machine()}, {platform.system()}")
    print(HEADER, flush=True)
    rows: list[Row] = []
    for name in options.names or names():
        print(f"# {name}", file=sys.stderr, flush=True)
        module = importlib.import_module(f"benchmarks.bench_{name}")
        found = module.run(smoke=options.smoke)
        if not options.smoke:
            found = steadied(found, partial(again, name, module))
        print(table(found), flush=True)
        rows += found
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump([figures(row) for row in rows], file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
