"""The text of one file of a port: includes, names that depend on context, and other names."""

from __future__ import annotations

import codecs
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from ._port_context import Context
from ._port_hip import Hipify, Placeholders
from ._port_includes import Include, Tree, find_includes
from ._replacer import Replacer, Rules as Pairs
from ._rules import RuleSet

# A condition of the preprocessor, also over several lines.
CONDITION = re.compile(
    rb"^[ \t]*#[ \t]*(?:el)?if\b[^\n]*(?:(?:(?<=\\)|(?<=\\\r))\n[^\n]*)*", re.MULTILINE
)
DEFINED = re.compile(rb"\bdefined\b[\s(]*\w+")  # which asks for no version
VERSION = re.compile(
    rb"\b(?:CUDA|CUDART|CUDNN|CUBLAS|CUFFT|CURAND|CUSPARSE|CUSOLVER|NCCL|THRUST|CUB)_"
    rb"(?:VERSION|VERSION_CODE|MAJOR|MINOR|VER_MAJOR)\b"
)


@dataclass
class Counts:
    """The outcome of a file: how many names were replaced, and those without a rule.

    `unmapped`: how often each came, and the line of the first. `guards`: line and text of each
    condition that compares another version now.
    """

    replaced: int = 0
    is_binary: bool = False
    has_own_namespace: bool = False
    unmapped: dict[str, tuple[int, int]] = field(default_factory=dict)
    guards: list[tuple[int, str]] = field(default_factory=list)

    def add_unmapped(self, names: Mapping[str, tuple[int, int]], lines: int = 0) -> None:
        """Adds what was found after so many lines."""
        for name, (count, line) in names.items():
            known, first = self.unmapped.get(name, (0, line + lines))
            self.unmapped[name] = (known + count, first)


class Rules:
    """All rules of one port. Safe to use from several threads.

    Parameters:
        tree: the files of the port.
        defaults: the rules of the platform, none where the user wants only his own.
        given: the rules of the user, which win.
        whole_words: the user's match whole names.
        is_hip: the default rules are hipify's.
    """

    def __init__(
        self,
        tree: Tree,
        defaults: RuleSet,
        given: Mapping[str, str],
        whole_words: bool,
        is_hip: bool = False,
    ) -> None:
        self.tree = tree
        self.defaults = defaults
        self.hipify = Hipify() if is_hip else None
        first = (_tier(given), whole_words)
        self.stand_ins = Placeholders()
        hidden = tuple((old, self.stand_ins.add(new)) for old, new in first[0] if new is not None)
        self.hides_given = Replacer([(hidden, whole_words)] if is_hip else [])
        watches: Pairs = [(each.encode(), None) for each in defaults.watches]
        second = ([*_tier(defaults.pairs), *watches], True)
        self.given = Replacer([first])
        self.all = Replacer([first, second])
        self.watches = Replacer([(watches, True)])

    def users_matches(self, text: bytes) -> int:
        """How often the user's rules change a text."""
        return self.given.replace(text)[1]

    def header(self, path: str) -> str | None:
        """The new path of a header that is not a file of the tree; None without a rule."""
        known = self.defaults.headers.get(path)
        if known is not None or path in self.defaults.absent:
            return known
        for folder, new in self.defaults.folders.items():
            if path.startswith(folder):
                return new + _ported_name(path[len(folder) :])
        return None

    def is_watched(self, path: str) -> bool:
        """Whether a header without a rule looks like one of CUDA's."""
        return any(fnmatchcase(path, each) for each in self.defaults.header_watches)


def _ported_name(path: str) -> str:
    """As torch_musa names what it has ported."""
    folder, base = posixpath.split(path)
    for old, new in ((".cuh", ".muh"), ("CUDA", "MUSA"), ("cuda", "musa")):
        base = base.replace(old, new)
    return posixpath.join(folder, base)


def _tier(pairs: Mapping[str, str]) -> Pairs:
    return tuple((old.encode(), new.encode()) for old, new in pairs.items())


class TextPort:
    """The port of one file.

    Parameters:
        path: of the file, from the root.
        counts: is filled in.
    """

    def __init__(self, rules: Rules, path: str, counts: Counts, has_context: bool) -> None:
        self.rules = rules
        self.path = path
        self.counts = counts
        self.lines = 0  # that are done
        names = rules.defaults.relative_names
        self.context = Context(names, rules.users_matches, counts_braces=has_context)

    def ported(self, text: bytes) -> bytes:
        """The next part of the text, afterwards. A part ends with a line, except for the last."""
        lines = text.count(b"\n")
        if self.rules.hipify is None:
            self._note_guards(text)
        new = self._hip(text) if self.rules.hipify is not None else self._musa(text)
        self.lines += lines
        self.counts.has_own_namespace |= self.context.has_own_namespace
        return new

    # --- MUSA ---

    def _note_guards(self, text: bytes) -> None:
        pairs, line, done = self.rules.defaults.pairs, self.lines + 1, 0
        for found in CONDITION.finditer(text):
            versions = VERSION.findall(DEFINED.sub(b"", found[0]))
            if any(version.decode() in pairs for version in versions):
                line += text.count(b"\n", done, found.start())
                done = found.start()
                self.counts.guards.append((line, found[0].strip().decode("utf-8", "replace")))

    def _musa(self, text: bytes) -> bytes:
        parts = []
        done = 0
        for include in find_includes(text):
            parts.append(self._names(text[done : include.start]))
            directive = text[include.start : include.end]
            parts.append(self._include(include, directive, text))
            self.lines += directive.count(b"\n")
            done = include.end
        parts.append(self._names(text[done:]))
        self.lines -= text.count(b"\n")
        return b"".join(parts) if len(parts) > 1 else parts[0]

    def _names(self, text: bytes) -> bytes:
        """Text without includes; counts its lines."""
        new, replaced = text, 0
        if self.rules.defaults.relative_names:
            new, replaced = self.context.ported(text)
            self.counts.add_unmapped(self.context.unmapped, self.lines)
            self.context.unmapped = {}
        changed, count, unmapped = self.rules.all.replace(new)
        self.counts.add_unmapped(unmapped, self.lines)
        self.counts.replaced += count + replaced
        self.lines += text.count(b"\n")
        return new if changed is None else changed

    # --- includes ---

    def _include(self, include: Include, directive: bytes, text: bytes) -> bytes:
        changed, count, _ = self.rules.given.replace(directive)
        if changed is not None:
            self.counts.replaced += count
            return changed
        new = self._new_path(include)
        if new is None:
            return directive
        head = text[include.start : include.path_start + 1]
        self.counts.replaced += new != include.path
        return head + new + text[include.end - 1 : include.end]

    def _new_path(self, include: Include) -> bytes | None:
        path = include.path.decode("utf-8", "surrogateescape")
        is_hip = self.rules.hipify is not None
        header = None if is_hip else self.rules.header(path)
        new = header if include.quote == b"<" else None
        if new is None:
            new = self.rules.tree.new_path(self.path, path)
        if new is None:
            new = header
        if new is None and not is_hip and self.rules.is_watched(path):
            name = f"<{path}>" if include.quote == b"<" else f'"{path}"'
            self.counts.add_unmapped({name: (1, 1)}, self.lines)
        return None if new is None else new.encode("utf-8", "surrogateescape")

    # --- HIP ---

    def _hip(self, text: bytes) -> bytes:
        """Hipify does all but the user's rules and the files of the tree, which it does not see."""
        assert self.rules.hipify is not None
        hidden = Placeholders()
        kept = self._hidden(text, hidden)
        suffix = posixpath.splitext(self.path)[1]
        new = self.rules.hipify.ported(kept, suffix, is_first=self.lines == 0)
        self.counts.replaced += _changed_lines(kept, new)
        _, _, left = self.rules.watches.replace(new)
        _, _, there = self.rules.watches.replace(kept)
        for name, (count, line) in left.items():
            first = there.get(name, (0, line))[1]
            self.counts.add_unmapped({name: (count, first)}, self.lines)
        return hidden.filled(self.rules.stand_ins.filled(new))

    def _hidden(self, text: bytes, hidden: Placeholders) -> bytes:
        parts = []
        done = 0
        for include in find_includes(text):
            directive = text[include.start : include.end]
            new = self._include(include, directive, text)
            path = include.path.decode("utf-8", "surrogateescape")
            is_own = self.rules.tree.new_path(self.path, path) is not None
            if new != directive or (is_own and include.quote == b'"'):
                parts += [self._given(text[done : include.start]), hidden.add(new)]
                done = include.end
        return b"".join([*parts, self._given(text[done:])])

    def _given(self, text: bytes) -> bytes:
        """The user's rules, with stand-ins for what they write."""
        changed, count, _ = self.rules.hides_given.replace(text)
        self.counts.replaced += count
        return text if changed is None else changed


def _changed_lines(old: bytes, new: bytes) -> int:
    """How many lines hipify has changed; the one that it puts before the first does not count."""
    old_lines, new_lines = (text.removeprefix(codecs.BOM_UTF8).splitlines() for text in (old, new))
    added = len(new_lines) - len(old_lines)
    lines = zip(old_lines, new_lines[max(0, added) :], strict=False)
    return sum(one != other for one, other in lines)
