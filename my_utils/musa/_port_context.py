"""Names of PyTorch that depend on their context: `CUDA`, `namespace cuda`, `cuda::`.

>>> context = Context()
>>> context.ported(b"namespace at { namespace cuda { } } namespace mine { namespace cuda { } }")
(b'namespace at { namespace musa { } } namespace mine { namespace cuda { } }', 1)
>>> context.ported(b"TORCH_LIBRARY_IMPL(mine, CUDA, lib) { cuda::std::min(a, b); }")
(b'TORCH_LIBRARY_IMPL(mine, PrivateUse1, lib) { cuda::std::min(a, b); }', 1)
>>> context.unmapped, context.has_own_namespace
({'cuda::std': (1, 1)}, True)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ._replacer import LineNumbers

TORCHS = {b"at", b"c10", b"torch"}
# Macros that paste a bare word behind `DispatchKey::` or `DeviceType::`, those of torch and those
# that projects put around them (TORCH_LIBRARY_IMPL_EXPAND, as their namespace is a macro itself).
BARE_KEY = re.compile(
    rb"((?:LIBRARY_IMPL\w*\s*\(\s*[\w:]+\s*(?:\((?:[^()]|\([^()]*\)){0,200}\)\s*)?,"
    rb"|REGISTER_GUARD_IMPL\s*\()\s*)(CUDA|Autocast)(?=\s*[,)])"
)
NEW_KEYS = {b"CUDA": b"PrivateUse1", b"Autocast": b"AutocastPrivateUse1"}
# Patterns begin with a literal, by which they are found fast.
RELATIVE = re.compile(rb"cuda[ \t]*::[ \t]*(\w+)")
GLOBAL = re.compile(rb"(?:^|[^\w:])(::[ \t]*)?$")
AROUND = 200  # bytes around a name that a user's rule which covers it may need
NAMESPACE = re.compile(rb"namespace\s+cuda\s*\{")
NESTED = re.compile(rb"namespace\s+(\w+)\s*::(?:\s*\w+\s*::)*\s*cuda\s*[:{]")
TOKEN = re.compile(
    rb"""(?P<skipped>//[^\n]*|/\*.*?(?:\*/|\Z)|\\[^\n]|\b\d[\w.]*(?:'\w[\w.]*)+"""
    rb"""|\b(?:L|U|u8?)?R"(?P<mark>[^()\\\s"]{0,16})\(.*?(?:\)(?P=mark)"|\Z)"""
    rb"""|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
    rb"|^[ \t]*\#[ \t]*(?P<condition>if|elif|else|endif)"
    rb"|(?<!using\ )\bnamespace\b(?P<path>[\w\s:]{0,1000})\{|(?P<brace>[{}])",
    re.DOTALL | re.MULTILINE,
)
# Namespaces and classes of libcu++, which MUSA has no counterpart of by name.
LIBCUXX = frozenset(
    b"access_property aligned_size_t annotated_ptr apply_access_property associate_access_property "
    b"atomic atomic_ref barrier binary_semaphore counting_semaphore device discard_memory "
    b"experimental latch memcpy_async mr pipeline pipeline_shared_state ptx std "
    b"thread_scope thread_scope_block thread_scope_device thread_scope_system".split()
)


class Block(NamedTuple):
    """An open brace: the outer two names of the namespaces it is in, and the block around it.

    Blocks are linked, so that the branches of an #if begin with the same one without a copy.
    """

    namespaces: tuple[bytes, ...]
    around: Block | None


@dataclass
class Context:
    """The state of one file. Texts come in order, with all that is between them left out.

    Parameters:
        names: what torch has in at::cuda or c10::cuda; `cuda::name` of it is torch's.
        users_matches: how often the user's rules match a text; what they match is left to them.
        counts_braces: whether a `namespace cuda` is anywhere in the file; see needs_context.
    """

    names: frozenset[bytes] = frozenset()
    users_matches: Callable[[bytes], int] = lambda text: 0
    counts_braces: bool = True
    has_own_namespace: bool = False
    unmapped: dict[str, tuple[int, int]] = field(default_factory=dict)
    block: Block | None = None
    conditions: list[Block | None] = field(default_factory=list)

    def ported(self, text: bytes) -> tuple[bytes, int]:
        """The text with these names replaced, and how many were."""
        count = 0
        if b"_IMPL" in text:
            text, count = BARE_KEY.subn(self._key, text)
        places: list[int] = []
        if self.counts_braces:
            places = self._namespaces(text)
        elif not self.has_own_namespace:
            found = NESTED.finditer(text)
            self.has_own_namespace = any(match[1] not in TORCHS for match in found)
        places += self._relative(text)
        if not places:
            return text, count
        new = bytearray(text)
        for place in places:
            new[place : place + 4] = b"musa"
        return bytes(new), count + len(places)

    def _key(self, match: re.Match[bytes]) -> bytes:
        new = match[1] + NEW_KEYS[match[2]]
        before = match.string[max(0, match.start() - AROUND) : match.start()]
        rest = match.string[match.end() : match.end() + AROUND]
        old_matches = self.users_matches(before + match[0] + rest)
        is_users = old_matches != self.users_matches(before + new + rest)
        return match[0] if is_users else new

    def _relative(self, text: bytes) -> list[int]:
        """Where `cuda::name` is torch's; other names are unmapped."""
        places = []
        lines = LineNumbers(text)
        for match in RELATIVE.finditer(text):
            start = match.start()
            # Not after a name or `::`, so that mine::cuda::f and my_cuda::f do not count.
            before = GLOBAL.search(text, max(0, start - 8), start)
            if before is None:
                continue
            if match[1] in self.names and before[1] is None:
                places.append(start)
            else:
                name = f"cuda::{match[1].decode('latin-1')}"
                count, line = self.unmapped.get(name, (0, 0))
                self.unmapped[name] = (count + 1, line or lines.of(start))
        return places

    def _namespaces(self, text: bytes) -> list[int]:
        """Where `namespace cuda` is directly in at, c10 or torch."""
        places: list[int] = []
        for token in TOKEN.finditer(text):
            if token["condition"] is not None:
                self._condition(token["condition"])
            elif token["path"] is not None:
                place = self._open(token)
                places += [] if place is None else [place]
            elif token["brace"] == b"{":
                self._enter(())
            elif token["brace"] == b"}" and self.block is not None:
                self.block = self.block.around
        return places

    def _enter(self, parts: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Returns the namespaces around the new block."""
        around = () if self.block is None else self.block.namespaces
        self.block = Block((*around, *parts)[:2], self.block)
        return around

    def _open(self, token: re.Match[bytes]) -> int | None:
        parts = tuple(token["path"].replace(b"inline", b"").replace(b"::", b" ").split())
        around = self._enter(parts)
        if b"cuda" not in parts:
            return None
        if len(parts) == 1 and len(around) == 1 and around[0] in TORCHS:
            return token.start("path") + token["path"].index(b"cuda")
        whole = [*around, *parts]
        if not (len(whole) > 1 and whole[0] in TORCHS and whole[1] == b"cuda"):
            self.has_own_namespace = True
        return None

    def _condition(self, word: bytes) -> None:
        """The branches of an #if open and close the same braces."""
        if word == b"if":
            self.conditions.append(self.block)
        elif not self.conditions:
            return
        elif word == b"endif":
            self.conditions.pop()
        else:
            self.block = self.conditions[-1]


def needs_context(texts: Iterable[bytes]) -> bool:
    """Whether the braces of a file must be counted, which is slow."""
    return any(NAMESPACE.search(text) is not None for text in texts)


def is_reported(name: str, has_own_namespace: bool) -> bool:
    """Whether a `cuda::name` is one of libcu++, or may be: the tree has no namespace cuda."""
    if not name.startswith("cuda::"):
        return True
    return not has_own_namespace or name[6:].encode() in LIBCUXX
