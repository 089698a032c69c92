"""Messages to real commands and real HTTP servers, also to such as fail, hang or are not there."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from my_utils.core import receiver
from my_utils.core.receiver import WAITING_MAX, Receiver, deliver_to

from ..support.inbox import Inbox, open_inbox
from ..support.live_ranks import wait_until
from ..support.ranks import free_port

pytestmark = pytest.mark.no_torch

MESSAGE = b'{"text": "rank 1 is gone"}'


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    with open_inbox() as inbox:
        yield inbox


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "ANSWER_S", 0.3)
    monkeypatch.setattr(receiver, "AGAIN_S", 0.05)


def sent(target: str, *messages: bytes) -> list[str]:
    """The warnings, once all messages have been handed over or given up."""
    warnings: list[str] = []
    to = Receiver(target, warnings.append)
    for message in messages:
        to.send(message)
    to.close()
    return warnings


def program(text: str) -> str:
    return shlex.join([sys.executable, "-c", text])


def test_an_address_gets_each_message_as_the_body_of_a_post(inbox: Inbox) -> None:
    assert sent(inbox.address, MESSAGE, b"{}") == []
    assert inbox.bodies == [MESSAGE, b"{}"]
    assert inbox.types == ["application/json"] * 2


def test_a_command_gets_each_message_on_its_standard_input(tmp_path: Path) -> None:
    copy = "import sys; open(sys.argv[1], 'ab').write(sys.stdin.buffer.read() + b'\\n')"
    assert sent(f"{program(copy)} {shlex.quote(str(tmp_path / 'a b'))}", MESSAGE, b"{}") == []
    assert (tmp_path / "a b").read_bytes() == MESSAGE + b"\n{}\n"


def test_a_command_is_not_run_by_a_shell(tmp_path: Path) -> None:
    sent(f"{program('pass')} ; touch {shlex.quote(str(tmp_path / 'made'))}", MESSAGE)
    assert not (tmp_path / "made").exists()


def test_a_failure_is_tried_again_once(inbox: Inbox, quick: None) -> None:
    inbox.statuses = [500]
    warnings: list[str] = []
    to = Receiver(inbox.address, warnings.append)
    to.send(MESSAGE)
    wait_until(lambda: len(inbox.bodies) == 2)
    to.close()
    assert inbox.bodies == [MESSAGE] * 2
    assert len(warnings) == 1 and "500" in warnings[0] and "SECRET" not in warnings[0]


@pytest.mark.parametrize("status", [404, 500, 301, 302, 307])
def test_a_receiver_that_refuses_gets_a_message_twice_and_no_more(
    inbox: Inbox, status: int, quick: None
) -> None:
    with open_inbox() as elsewhere:
        inbox.location, inbox.statuses = elsewhere.address, [status] * 100
        warnings = sent(inbox.address, MESSAGE, b"{}")
    assert inbox.bodies == [MESSAGE, MESSAGE, b"{}", b"{}"]
    assert elsewhere.bodies == []  # where the user has sent nothing
    assert len(warnings) == 1 and "SECRET" not in warnings[0]


def failing_targets() -> dict[str, tuple[str, str]]:
    return {
        "a dead port": (f"http://127.0.0.1:{free_port()}/SECRET", "Connection refused"),
        "no such command": ("/no/such/SECRET/command", "No such file"),
        "a command that fails": (program("exit(3)"), "exit status 3"),
        "a command that is killed": (
            program("import os; os.kill(os.getpid(), 9)"), "by SIGKILL",
        ),
        "a command that does not read": (program("import os; os.close(0); exit(4)"), "status 4"),
    }  # fmt: skip


@pytest.mark.parametrize("name", failing_targets())
def test_trouble_is_one_warning(name: str, quick: None) -> None:
    target, reason = failing_targets()[name]
    warnings = sent(target, *[MESSAGE] * 3)
    assert len(warnings) == 1 and reason in warnings[0], warnings


def test_a_receiver_that_never_answers_holds_up_nobody(inbox: Inbox, quick: None) -> None:
    inbox.answers.clear()
    warnings: list[str] = []
    to = Receiver(inbox.address, warnings.append)
    for _ in range(3 * WAITING_MAX):  # most of which find no place
        to.send(MESSAGE)
    wait_until(lambda: warnings)
    assert "timed out" in warnings[0]
    inbox.answers.set()
    to.close()
    wait_until(lambda: len(inbox.bodies) >= WAITING_MAX)
    assert len(warnings) == 1


def test_a_command_that_never_ends_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "ANSWER_S", 1.0)
    children = tmp_path / "children"
    script = f"sleep 1000 & echo $! >> {shlex.quote(str(children))}; wait"
    warnings = sent(shlex.join(["sh", "-c", script]), MESSAGE)
    assert len(warnings) == 1 and "had not ended" in warnings[0]
    pids = children.read_text().split()
    assert pids
    wait_until(lambda: not any(map(is_running, pids)))


def is_running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_command_has_no_signal_blocked(tmp_path: Path) -> None:
    """Whoever watches blocks signals in its thread, so that they reach the training."""
    text = "import signal; open('{}', 'w').write(str(signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
    done: list[list[str]] = []

    def send_blocked() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        done.append(sent(program(text.format(tmp_path / "mask")), MESSAGE))

    thread = threading.Thread(target=send_blocked)
    thread.start()
    thread.join()
    assert done == [[]]
    assert (tmp_path / "mask").read_text() == "set()"


@pytest.mark.parametrize(
    "target", ["", " ", "http://", "https:///path", "http://host:port/", "http://host/a b", "'open"]
)
def test_what_names_no_receiver_is_refused(target: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        deliver_to(target)


def test_a_warning_names_the_host_alone() -> None:
    assert deliver_to("https://user:word@hooks.example.com:8443/T/SECRET?token=x")[0] == (
        "https://hooks.example.com:8443"
    )
    assert deliver_to("/opt/tools/notify --token SECRET")[0] == "notify"
