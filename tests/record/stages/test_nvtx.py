"""Stages as NVTX ranges, seen by a tool that is attached as Nsight Systems attaches."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from my_utils import _core

from ...conftest import RunPython
from ...fakes import compile_fake

pytestmark = pytest.mark.skipif(
    not _core.nvtx_state()["built"], reason="built without the NVTX headers (nvidia-nvtx)"
)


@pytest.fixture(scope="session")
def injection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvtx")
    return compile_fake("nvtx_injection.c", folder / "libinjection.so")


@dataclass(frozen=True)
class Call:
    """One call that the tool heard."""

    what: str
    fields: dict[str, str]


@dataclass
class Tool:
    """Runs scripts with the tool attached."""

    run_python: RunPython
    library: Path
    folder: Path

    def hear(self, script: str, **env: str) -> list[Call]:
        log = self.folder / "heard"
        log.unlink(missing_ok=True)
        settings = {"NVTX_INJECTION64_PATH": str(self.library), "FAKE_NVTX_LOG": str(log)}
        result = self.run_python("-c", script, env={**settings, **env})
        assert result.returncode == 0, result.stderr
        assert result.stderr == ""
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        return [parse(line) for line in lines]


def parse(line: str) -> Call:
    what, *fields = line.split("\t")
    pairs = (field.split("=", 1) for field in fields)
    return Call(what, dict(pairs))


def of(calls: list[Call], what: str) -> list[dict[str, str]]:
    return [call.fields for call in calls if call.what == what]


@pytest.fixture
def tool(run_python: RunPython, injection: Path, tmp_path: Path) -> Tool:
    return Tool(run_python, injection, tmp_path)


def assert_balanced(calls: list[Call]) -> None:
    """Every push has its pop, in each domain of each thread, and no pop comes first."""
    depth: Counter[tuple[str, str]] = Counter()
    for call in calls:
        if call.what in ("push", "pop"):
            track = (call.fields["tid"], call.fields["domain"])
            depth[track] += 1 if call.what == "push" else -1
            assert depth[track] >= 0
    assert not +depth


def test_names_colors_domains_and_categories(tool: Tool) -> None:
    calls = tool.hear("""
from my_utils import _core
timer = _core.Timer("train")
timer.start("iter")
timer.start("forward", "#ff8800")
timer.stop("forward")
timer.start("copy", color=0x80123456, domain_name="transfers")
timer.stop("copy")
with timer.time_stage("optimizer", "green"):
    pass
timer.stop("iter")
""")
    pushed = of(calls, "push")
    assert [(p["message"], p["color"], p["domain"]) for p in pushed] == [
        ("iter", "ff0000ff", ""),
        ("forward", "ffff8800", ""),
        ("copy", "80123456", "transfers"),
        ("optimizer", "ff008000", ""),
    ]
    assert all(p["registered"] == "1" for p in pushed)
    named = {(c["domain"], c["number"]): c["name"] for c in of(calls, "category")}
    assert {named[p["domain"], p["category"]] for p in pushed} == {"train"}
    assert_balanced(calls)


def test_strings_and_domains_are_registered_once(tool: Tool) -> None:
    calls = tool.hear("""
from my_utils import _core
timer = _core.Timer()
timer.register_stage("forward", "red", "mine")
for _ in range(50):
    timer.start("forward", "red", "mine")
    timer.stop("forward")
""")
    assert [s for s in of(calls, "string") if s["text"] == "forward"] == [
        {"domain": "mine", "text": "forward"}
    ]
    assert [d["name"] for d in of(calls, "domain")].count("mine") == 1
    first_push = next(i for i, call in enumerate(calls) if call.what == "push")
    assert "forward" in [s["text"] for s in of(calls[:first_push], "string")]
    assert len(of(calls, "push")) == 50
    assert_balanced(calls)


def test_ranges_stay_balanced_whatever_happens(tool: Tool) -> None:
    calls = tool.hear("""
from my_utils import _core
timer = _core.Timer()
for step in range(5):
    timer.set_step(step)
    try:
        with timer.time_stage("iter"):
            timer.start("forward")
            timer.start("attention")
            timer.stop("forward")      # closes attention
            timer.start("left open")
            raise ValueError
    except ValueError:
        pass
    timer.start("over the end of the step")
    timer.stop("never started")
timer.set_step(5)
""")
    assert len(of(calls, "push")) == 25
    assert_balanced(calls)


def test_threads_have_stacks_of_their_own(tool: Tool) -> None:
    calls = tool.hear("""
import threading
from my_utils import _core
timer = _core.Timer()
barrier = threading.Barrier(3)
def work(name):
    barrier.wait()
    for _ in range(200):
        with timer.time_stage(name):
            with timer.time_stage("inner"):
                pass
threads = [threading.Thread(target=work, args=(f"worker {i}",)) for i in range(3)]
[t.start() for t in threads]
[t.join() for t in threads]
""")
    by_thread: dict[str, set[str]] = {}
    for push in of(calls, "push"):
        by_thread.setdefault(push["tid"], set()).add(push["message"])
    assert sorted(map(sorted, by_thread.values())) == [["inner", f"worker {i}"] for i in range(3)]
    assert_balanced(calls)


def test_many_names_do_not_grow_without_end(tool: Tool) -> None:
    calls = tool.hear("""
from my_utils import _core
timer = _core.Timer()
for i in range(5000):
    timer.start(f"name {i}")
    timer.stop(f"name {i}")
assert _core.nvtx_state()["overflowed"] == 5000 - 4096, _core.nvtx_state()
""")
    assert len(of(calls, "string")) == 4096 + 1
    assert {p["message"] for p in of(calls, "push")[4096:]} == {"(other)"}
    assert_balanced(calls)


def test_a_name_with_a_zero_byte_and_a_long_one(tool: Tool) -> None:
    calls = tool.hear("""
from my_utils import _core
timer = _core.Timer()
for name in ("cut\\0here", "\u00e4" * 200):
    timer.start(name)
    timer.stop(name)
""")
    messages = [p["message"] for p in of(calls, "push")]
    assert messages == ["cut", "\u00e4" * 127]


@pytest.mark.parametrize("path", ["", "/does/not/exist.so"])
def test_without_a_tool_nothing_is_attached(run_python: RunPython, path: str) -> None:
    script = """
from my_utils import _core
assert not _core.nvtx_state()["attached"]
timer = _core.Timer()
timer.register_stage("forward")
timer.start("forward", "red", "mine")
timer.stop("forward")
print(timer.aggregates()[0][:2])
"""
    result = run_python("-c", script, env={"NVTX_INJECTION64_PATH": path})
    assert result.stdout == "(('forward',), 1)\n"
    assert result.stderr == ""


def test_shares_the_tool_with_the_nvtx_package(tool: Tool) -> None:
    pytest.importorskip("nvtx", reason="the package nvtx is not installed")
    calls = tool.hear("""
import nvtx
from my_utils import _core
timer = _core.Timer()
with nvtx.annotate("theirs"), timer.time_stage("ours"):
    pass
""")
    messages = [p["message"] for p in of(calls, "push")]
    assert "ours" in messages
    assert_balanced(calls)


@pytest.mark.parametrize("method", ["start", "time_stage", "register_stage"])
@pytest.mark.parametrize(
    ("look", "error", "message"),
    [
        (
            ("mauvish",),
            ValueError,
            "color must be a name (red, green, blue, yellow, orange, purple, ...), '#rgb', "
            "'#rrggbb' or an int, not 'mauvish'",
        ),
        (("#12345",), ValueError, "'#rrggbb' or an int, not '#12345'"),
        (
            (1 << 32,),
            ValueError,
            "color must be from 0 to 0xffffff (RGB) or to 0xffffffff (ARGB), not 4294967296",
        ),
        ((1.5,), TypeError, "color must be a str or an int, not float (1.5)"),
        (("red", 7), TypeError, "domain_name must be str or None, not int (7)"),
    ],
)
def test_bad_looks_say_what_is_allowed(
    method: str, look: tuple[object, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as raised:
        getattr(_core.Timer(), method)("forward", *look)
    assert message in str(raised.value)
