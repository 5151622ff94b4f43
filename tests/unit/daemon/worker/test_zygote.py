"""The end of a zygote, whichever way it goes."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from leeward.daemon.worker.zygote import Zygote
from leeward.isolation.channel import Channel
from leeward.wire import control

#: One that goes when its input ends, and one that doesn't.
GOES, STAYS = "import sys; sys.stdin.read()", "import signal; signal.pause()"


@pytest.fixture(params=[GOES, STAYS], ids=["goes", "stays"])
def zygote(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Zygote]:
    """A process in a zygote's place, whose channel is its input."""
    made = object.__new__(Zygote)
    made.process = subprocess.Popen([sys.executable, "-I", "-S", "-c", request.param], stdin=subprocess.PIPE)
    assert made.process.stdin is not None
    monkeypatch.setattr(Zygote, "close", lambda self: self.process.stdin.close())
    yield made
    if made.process.poll() is None:
        made.process.kill()
        made.process.wait()


def test_a_zygote_has_its_time_and_no_more(zygote: Zygote) -> None:
    goes = zygote.process.args[-1] == GOES  # type: ignore[index]  # a list
    zygote.end(60.0 if goes else 0.0)

    assert (0 if goes else -signal.SIGKILL) == zygote.process.returncode


def test_a_zygote_that_was_collected_before_is_not_signalled(zygote: Zygote) -> None:
    """Its number may be somebody else's."""
    zygote.process.kill()
    zygote.process.wait()
    zygote.end(60.0)

    assert -signal.SIGKILL == zygote.process.returncode


def test_without_a_descriptor_it_ends_as_well(zygote: Zygote, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_pid: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", none)
    zygote.end(60.0)

    assert zygote.process.returncode in (0, -signal.SIGKILL)  # it may have gone before we looked


def test_a_keeper_whose_pidfd_found_no_room_is_lost_and_its_zygote_is_not() -> None:
    """The kernel has cut the descriptor off: that worker is made again."""
    here, there = Channel.pair()
    there.send(control.Made(3, 4711))
    told: list[object] = []
    zygote = object.__new__(Zygote)
    zygote._channel = here
    zygote._failed, zygote._gone = told.append, lambda: told.append("gone")
    zygote._made = lambda *_: told.append("made")
    zygote._on_message(0)
    here.close()
    there.close()

    assert [control.Failed(3, "", "no descriptor was left for its keeper's pidfd")] == told


@pytest.mark.parametrize(("numbers", "code", "how"), [
    ([0, 1], "import os; os._exit(3)", "preload: module b: the zygote ends with status 3 while it imports it"),
    ([0], "import os; os.abort()", "preload: module a: the zygote is killed by signal 6 (Aborted) while it imports it"),
    ([0, 1, 2], "import os; os.abort()", ""), ([-1], "", ""), ([], "", "")])
def test_the_module_that_ended_it_is_named(numbers: list[int], code: str, how: str) -> None:
    """By its place among those that it was told to import, and by nothing else that it says."""
    here, there = Channel.pair()
    zygote = object.__new__(Zygote)
    zygote._channel, zygote._preload, zygote.importing = here, ("a", "b"), ""
    for number in numbers:
        there.send(control.Importing(number))
        zygote._on_message(0)
    zygote.process = subprocess.Popen([sys.executable, "-I", "-S", "-c", code])
    here.close()
    there.close()

    assert how == zygote.death()


@pytest.mark.parametrize(("report", "snapshot"), [
    ({"snapshot": "taken"}, "taken"), ({}, "pending"), ({"snapshot": "none: " + 300 * "x"}, "none: " + 194 * "x")])
def test_what_it_says_of_its_snapshot_is_known_when_it_is_ready(report: dict[str, str], snapshot: str) -> None:
    here, there = Channel.pair()
    there.send(control.Ready(report))
    told: list[str] = []
    zygote = object.__new__(Zygote)
    zygote._channel = here
    zygote._hear_out = lambda: None  # type: ignore[method-assign]
    zygote._ready = lambda: told.append(zygote.snapshot)
    zygote._on_message(0)
    here.close()
    there.close()

    assert [snapshot] == told
