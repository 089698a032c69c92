"""Rewrites a folder of CUDA sources for MUSA, into a folder next to it.

    my_utils port cuda --cuda-dir-path cuda/        (or python -m my_utils.musa.simple_porting)

makes `cuda_musa` with `.mu` for `.cu` and `.muh` for `.cuh`. The default rules, `rules/*.json`,
match whole names; those of the user match any part of the text, and win. Other files are copied;
modes, links, line endings and encodings stay. What looks like CUDA and has no rule is reported.

Exit status: 0 done, or with --check nothing to do; 1 something could not be ported, or with --check
would change; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..core.arguments import check_bool, check_int
from ..core.command_line import CommandParser, add_quiet, fail, parser, run_cli
from ..core.outputs import open_output
from ..core.progress import Progress
from ..core.reprs import short_repr
from ..core.units import count_text
from . import _porting_arguments as checked, _rules
from ._port_context import is_reported
from ._port_file import Unreadable, make_diffs, ported_pieces
from ._port_includes import Tree
from ._port_output import Output
from ._port_text import Counts, Rules
from ._port_tree import Entry, Plan, make_plan
from ._shell_forms import parse_list, parse_mapping

__all__ = ["PortingReport", "SimplePorting", "Unmapped", "main"]

StrPath = str | os.PathLike[str]
SHOWN = 30  # names in the printed report


@dataclass
class Unmapped:
    """A name of CUDA that no rule maps: how often it occurs, and where first."""

    name: str
    count: int
    file: str
    line: int


@dataclass
class VersionGuard:
    """A condition on the version of a CUDA library: it compares MUSA's now, which counts
    otherwise, so that it may change its side."""

    file: str
    line: int
    text: str


@dataclass
class PortingReport:
    """What a port did, or would do."""

    output: Path
    files: int = 0
    replaced: int = 0  # names
    changed: list[str] = field(default_factory=list)  # what was written, or would be; by new name
    removed: list[str] = field(default_factory=list)  # made by an earlier port, not any more
    unmapped: list[Unmapped] = field(default_factory=list)  # the most frequent first
    families: dict[str, int] = field(default_factory=dict)  # names of libraries without any rule
    guards: list[VersionGuard] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def would_change(self) -> bool:
        """Whether files would be written or removed."""
        return bool(self.changed or self.removed)

    def text(self) -> str:
        """The report to read: counts, then what is left to do by hand."""
        lines = [
            f"{self.files} files, {self.replaced} names replaced, {len(self.changed)} files "
            f"changed -> {self.output}"
        ]
        lines += [f"left out: {note}" for note in self.notes]
        lines += [f"error: {error}" for error in self.errors]
        if self.unmapped:
            total = sum(each.count for each in self.unmapped)
            lines.append(f"no rule for {len(self.unmapped)} names ({total} places):")
        for each in self.unmapped[:SHOWN]:
            lines.append(f"  {each.name}: {each.count} x, first {each.file}:{each.line}")
        if len(self.unmapped) > SHOWN:
            lines.append(f"  ... and {len(self.unmapped) - SHOWN} more")
        if self.families:
            named = ", ".join(f"{of} ({count_text(n, 'name')})" for of, n in self.families.items())
            lines.append(f"no rule covers {named}; pass rules with --mapping-dir-path")
        if self.guards:
            count = count_text(len(self.guards), "condition")
            lines.append(f"changed in meaning: {count} on a version, which MUSA counts otherwise:")
        lines += [f"  {one.file}:{one.line}: {one.text}" for one in self.guards[:SHOWN]]
        if len(self.guards) > SHOWN:
            lines.append(f"  ... and {len(self.guards) - SHOWN} more")
        return "\n".join(lines)


class SimplePorting:
    """Ports the CUDA sources of a folder.

    Parameters:
        cuda_dir_path: the folder; the output is `<folder>_musa` next to it.
        ignore_dir_paths: folders to leave out with all below them, from the working directory or
            from `cuda_dir_path`.
        mapping_rule: a mapping of old to new text. It matches any part of the text; where it meets
            a default rule, it wins. Also accepted as the second argument, with
            `drop_default_mapping` and `mapping_dir_path` after it.
        drop_default_mapping: use no rules but those given.
        mapping_dir_path: a folder of JSON files, each an object of old and new text, used like
            `mapping_rule`, which wins over them.
        platform: "musa", or "hip" for AMD's names, by the hipify of the torch that is installed.
        whole_words: match the given rules at whole names only, as the default rules.
        jobs: threads; None for one a processor.
        progress: show a bar; None for where standard error is a terminal.

    Wrong arguments raise TypeError or ValueError. The output is written only when `run` is called;
    a folder of that name that no port has made is an error and is left alone.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp(), "src")
    >>> folder.mkdir()
    >>> _ = (folder / "a.cu").write_text("cudaFree(x.my()); // cuda")
    >>> report = SimplePorting(str(folder), mapping_rule={"x.my()": "y"}).run()
    >>> (folder.parent / "src_musa" / "a.mu").read_text()
    'musaFree(y); // cuda'
    """

    def __init__(
        self,
        cuda_dir_path: StrPath | None = None,
        ignore_dir_paths: Any = None,
        mapping_rule: Any = None,
        drop_default_mapping: Any = False,
        mapping_dir_path: StrPath | None = None,
        *,
        platform: str = "musa",
        whole_words: bool = False,
        jobs: int | None = None,
        progress: bool | None = None,
    ) -> None:
        if isinstance(ignore_dir_paths, Mapping) or isinstance(mapping_rule, bool):
            rule, drop, folder = ignore_dir_paths, mapping_rule, drop_default_mapping
            ignore_dir_paths, mapping_rule = None, rule
            if isinstance(folder, str | os.PathLike):
                drop_default_mapping, mapping_dir_path = False, folder
            drop_default_mapping = drop if isinstance(drop, bool) else bool(drop_default_mapping)
        self.root = checked.folder(cuda_dir_path)
        self.ignored = checked.path_list("ignore_dir_paths", ignore_dir_paths)
        self.platform = checked.platform(platform)
        processors = len(os.sched_getaffinity(0))
        self.jobs = processors if jobs is None else check_int("jobs", jobs, 1, or_none=True)
        self.progress = progress
        self._is_command = self._no_color = False
        self.output = self.root.with_name(f"{self.root.name}_{self.platform.name}")
        given = _rules.read_mapping_dir(mapping_dir_path) if mapping_dir_path is not None else {}
        self._given = given | checked.mapping(mapping_rule)
        self._defaults = _rules.RuleSet()
        self._drops_defaults = check_bool("drop_default_mapping", drop_default_mapping)
        if not self._drops_defaults:
            self._defaults = _rules.load(self.platform.name)
        self._whole_words = check_bool("whole_words", whole_words)

    def __repr__(self) -> str:
        return short_repr(self, "root", "output")

    def run(self, *, check: bool = False) -> PortingReport:
        """Ports the folder. With `check` nothing is written, and the report says what would be.

        A file that cannot be read or written is an entry of `errors`; the others are ported.
        ValueError when two files would get the same name, FileExistsError when the output exists
        and no port made it.
        """
        plan, rules = self._prepare()
        output = Output(self.output)
        output.check_is_ours()
        report = PortingReport(self.output, files=len(plan.files), notes=plan.notes)
        if not check:
            output.begin(plan)
        is_first = check and output.made_before is None

        def work(entry: Entry) -> tuple[Entry, Counts | str, bool]:
            counts = Counts()
            chosen = rules if entry.is_text else None
            pieces = ported_pieces(self.root / entry.old, entry.old, chosen, counts)
            try:
                if is_first:
                    for _ in pieces:
                        pass
                    return entry, counts, counts.replaced > 0 or entry.old != entry.new
                if check:
                    return entry, counts, not output.holds(entry, pieces)
                return entry, counts, output.put(entry, pieces)
            except Unreadable as error:
                return entry, str(error), False
            except OSError as error:
                return entry, f"{self.output / entry.new}: {error.strerror}", False

        unmapped: dict[str, Unmapped] = {}
        has_own_namespace = False
        for entry, counts, is_changed in self._in_parallel(work, plan.files):
            _add(report, entry, counts, is_changed, unmapped)
            has_own_namespace |= isinstance(counts, Counts) and counts.has_own_namespace
        self._do_links(plan, output, report, check)
        report.removed = output.stale(plan) if check else output.finish(plan)
        left = [each for each in unmapped.values() if is_reported(each.name, has_own_namespace)]
        report.unmapped = sorted(left, key=lambda each: (-each.count, each.name))
        of_each = (self._defaults.family_of(each.name) for each in report.unmapped)
        report.families = dict(Counter(name for name in of_each if name is not None).most_common())
        return report

    def diffs(self) -> Iterator[str]:
        """The change of each file as a unified diff, in order; nothing is written."""
        plan, rules = self._prepare()
        for entry in plan.files:
            if entry.is_text:
                names = (f"{self.root.name}/{entry.old}", f"{self.output.name}/{entry.new}")
                path = self.root / entry.old
                yield from make_diffs(path, entry.old, rules, *names)

    def _prepare(self) -> tuple[Plan, Rules]:
        plan = make_plan(self.root, self.output, self.platform.suffixes, self.ignored)
        tree = Tree(self.root, {entry.old: entry.new for entry in plan.files})
        is_hip = self.platform.name == "hip" and not self._drops_defaults
        return plan, Rules(tree, self._defaults, self._given, self._whole_words, is_hip)

    def _do_links(self, plan: Plan, output: Output, report: PortingReport, check: bool) -> None:
        for link in plan.links:
            try:
                if check:
                    is_new = output.made_before is not None and not output.holds_link(link)
                else:
                    is_new = output.put_link(link)
            except OSError as error:
                report.errors.append(f"{self.output / link.new}: {error.strerror}")
                continue
            if is_new:
                report.changed.append(link.new)

    def _in_parallel(self, work: Any, entries: Sequence[Entry]) -> Iterator[Any]:
        is_quiet = self.progress is not None and not self.progress
        bar = Progress(
            "simple_porting", len(entries), "files", quiet=is_quiet, no_color=self._no_color,
            bar=bool(self.progress), lines=self._is_command,
        )  # fmt: skip
        with ThreadPoolExecutor(self.jobs) as pool, bar as shown:
            running: deque[Future[Any]] = deque()
            for entry in entries:
                running.append(pool.submit(work, entry))
                if len(running) > 4 * self.jobs:
                    yield running.popleft().result()
                    shown.advance()
            for each in running:
                yield each.result()
                shown.advance()


def _add(
    report: PortingReport,
    entry: Entry,
    ported: Counts | str,
    is_changed: bool,
    unmapped: dict[str, Unmapped],
) -> None:
    if isinstance(ported, str):
        report.errors.append(ported)
        return
    if is_changed:
        report.changed.append(entry.new)
    report.replaced += ported.replaced
    report.guards += [VersionGuard(entry.old, line, text) for line, text in ported.guards]
    for name, (count, line) in ported.unmapped.items():
        known = unmapped.get(name)
        if known is None:
            unmapped[name] = Unmapped(name, count, entry.old, line)
        else:
            known.count += count


# --- the command line ---


def command_parser() -> CommandParser:
    chosen = parser(
        "port cuda",
        "Rewrites a folder of CUDA sources for MUSA or HIP, to <folder>_musa next to it.",
        [
            "my_utils port cuda --cuda-dir-path csrc --dry-run",
            "my_utils port cuda --cuda-dir-path csrc --report - --quiet",
            """my_utils port cuda --cuda-dir-path csrc --mapping-rule '{"old": "new"}'""",
        ],
        statuses="0  done, or with --check nothing to do\n"
        "1  a file could not be ported, or with --check something would change\n"
        "2  wrong arguments",
        allow_abbrev=False,
    )
    add = chosen.add_argument
    add("--cuda-dir-path", required=True, metavar="DIR", help="the folder to port")
    add("--ignore-dir-paths", nargs="+", default=[], metavar="DIRS",
        help="""folders to exclude: '["csrc/npu"]', or separated by spaces""")  # fmt: skip
    add("--mapping-rule", nargs="+", default=[], metavar="RULES",
        help="""your rules, which override the others: '{"old": "new"}'""")  # fmt: skip
    add("--drop-default-mapping", action="store_true", help="use only your rules")
    add("--mapping-dir-path", metavar="DIR", help="a folder of JSON files with your rules")
    add("--platform", choices=tuple(_rules.PLATFORMS), default="musa")
    add("--whole-words", action="store_true", help="match your rules only at whole names")
    add("--dry-run", action="store_true", help="print a unified diff and write nothing")
    add("--check", action="store_true", help="write nothing; exit status 1 if that would change")
    add(
        "--report",
        metavar="FILE",
        help="write the report as JSON, with all unmapped names; - is standard output",
    )
    add("--jobs", type=int, metavar="N", help="number of threads (default: one a processor)")
    add_quiet(chosen, "no progress and no report")
    return chosen


def _quoted_command(chosen: argparse.Namespace) -> str:
    """What the user meant to type, as a shell takes it."""
    command = ["my_utils", "port", "cuda", "--cuda-dir-path"]
    command += [chosen.cuda_dir_path, "--mapping-rule", '{"old": "new", "x::old": "x::new"}']
    if chosen.ignore_dir_paths:
        command += ["--ignore-dir-paths", '["csrc/npu"]']
    return shlex.join(command)


def _parsed(own: CommandParser, chosen: argparse.Namespace) -> SimplePorting:
    try:
        ignored = parse_list(chosen.ignore_dir_paths)
        mapping = parse_mapping(chosen.mapping_rule) if chosen.mapping_rule else None
    except ValueError as error:
        windows = _quoted_command(chosen).replace('"', '\\"').replace("'", '"')
        own.error(
            f"the rules or folders {error}\nquote them like this:\n"
            f"  {_quoted_command(chosen)}\nand on Windows:\n  {windows}"
        )
    try:
        porting = SimplePorting(
            chosen.cuda_dir_path, ignored, mapping, chosen.drop_default_mapping,
            chosen.mapping_dir_path, platform=chosen.platform, whole_words=chosen.whole_words,
            jobs=chosen.jobs, progress=False if chosen.quiet else None,
        )  # fmt: skip
    except (TypeError, ValueError) as error:
        own.error(str(error))
    porting._is_command, porting._no_color = True, chosen.no_color
    return porting


def _write_report(path: str, report: PortingReport) -> None:
    content = {**asdict(report), "output": str(report.output)}
    with open_output(path) as file:
        file.write(json.dumps(content, indent=1).encode())


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    return run_cli(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    own = command_parser()
    chosen = own.parse_args(argv)
    porting = _parsed(own, chosen)
    try:
        if chosen.dry_run:
            for diff in porting.diffs():
                print(diff, end="")
        report = porting.run(check=chosen.check or chosen.dry_run)
        if chosen.report:
            _write_report(chosen.report, report)
    except BrokenPipeError:
        raise
    except (OSError, ValueError, ImportError) as error:
        return fail("port cuda", error)
    if not chosen.quiet:
        print(report.text(), file=sys.stderr)
    return int(bool(report.errors) or (chosen.check and report.would_change))


if __name__ == "__main__":
    sys.exit(main())
