"""What becomes of orders when the program ends between two steps, and what a rule may not carry out. No sandbox is needed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kit.live_daemon import PATIENCE
from kit.waiting import poll_until
from leeward.apps.approvals.carrying import carrying
from leeward.apps.approvals.carrying.apply import OpenProjects, Project, in_project
from leeward.apps.approvals.carrying.asking import command_request, config_request, parse_request
from leeward.apps.approvals.carrying.carrying import OrderCarrier, RunBook
from leeward.apps.approvals.carrying.orders import command_order, pack_order, push_order
from leeward.apps.approvals.carrying.settings import ServiceSettings
from leeward.apps.approvals.queue import queue
from leeward.apps.approvals.queue.approval_request import ApprovalRequest, NewRequest
from leeward.apps.approvals.queue.queue import ApprovalQueue
from leeward.apps.approvals.queue.subjects import branch
from leeward.errors import Busy, LeewardError

#: Nothing is recorded.
NO_ROWS: Any = SimpleNamespace(opening=contextlib.nullcontext, begin=lambda box, **why: None,
                               look=lambda box, info: None, end=lambda box, info, why: None)


class Crash(BaseException):
    """The end of the program, as far as the thread sees it that carries out."""


class Stand:
    """A queue with what carries out, which can be begun anew."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.queue = folder, ApprovalQueue(str(folder / "state"))
        self.settings = ServiceSettings(str(folder / "state"), self.queue)
        self.project = Project(str(folder))
        self.runs = RunBook()

    def carrier(self, fault: Callable[[str], None] = lambda step: None) -> OrderCarrier:
        return OrderCarrier(self.queue, self.runs, self.settings, OpenProjects(self.project),
                            str(self.folder / "no daemon"), NO_ROWS, fault)

    def stage(self, number: int, stage: str) -> ApprovalRequest:
        found = list[ApprovalRequest]()

        def look() -> bool:
            found[:] = [request for request in (self.queue.get(number),) if request is not None]
            return stage == found[0].stage
        poll_until(look, f"a request that is {stage}")
        return found[0]


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    made = Stand(tmp_path)
    yield made
    made.queue.close()
    made.project.close()


def crash_at(step: str) -> Callable[[str], None]:
    def fault(reached: str) -> None:
        if reached == step:
            raise Crash
    return fault


@pytest.mark.parametrize("step", ["begin", "begun"])
def test_a_key_is_set_after_an_end_in_between(stand: Stand, step: str) -> None:
    carrier = stand.carrier(crash_at(step))
    number = stand.queue.submit(config_request("exec.timeout", 9)).id
    stand.queue.decide([number], True, "cli")
    carrier.close()
    assert 300.0 == stand.settings.all()["exec.timeout"]

    carrier = stand.carrier()
    carrier.start()
    stand.stage(number, "applied")
    assert 9.0 == stand.settings.all()["exec.timeout"]
    carrier.close()


def test_a_command_is_not_run_twice(stand: Stand) -> None:
    carrier = stand.carrier(crash_at("begun"))
    number = stand.queue.submit(command_request(command_order("true", profile="build"))).id
    stand.queue.decide([number], True, "cli")
    carrier.close()
    assert "applying" == stand.stage(number, "applying").stage

    carrier = stand.carrier()
    carrier.start()
    assert "isn't known" in stand.stage(number, "failed").note
    carrier.close()


def test_a_command_without_a_daemon_fails_with_the_reason(stand: Stand) -> None:
    carrier = stand.carrier()
    number = stand.queue.submit(command_request(command_order("true", profile="build"))).id
    stand.queue.decide([number], True, "cli")

    assert "no daemon answers" in stand.stage(number, "failed").note
    poll_until(lambda: "failed" == (stand.runs.get(number) or {}).get("status"), "a command that has failed")
    carrier.close()


@pytest.mark.parametrize("step", ["begin", "finish"])
def test_a_full_disk_is_waited_for(stand: Stand, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Else nobody would come back to it, and what was done would count as unknown after the next start."""
    monkeypatch.setattr(queue, "AGAIN_S", 0.01)
    refused, transaction = threading.Event(), stand.queue._store.transaction

    def takes_writes(*, yes: bool) -> None:
        with stand.queue._lock:
            stand.queue._store._file.execute(f"PRAGMA query_only = {not yes}")

    @contextlib.contextmanager
    def noted(**options: bool) -> Iterator[None]:
        try:
            with transaction(**options):
                yield
        except Busy:
            refused.set()
            raise

    monkeypatch.setattr(stand.queue._store, "transaction", noted)
    carrier = stand.carrier(lambda reached: takes_writes(yes=False) if reached == step else None)
    number = stand.queue.submit(config_request("exec.timeout", 9)).id
    stand.queue.decide([number], True, "cli")
    assert refused.wait(PATIENCE)
    takes_writes(yes=True)
    stand.stage(number, "applied")
    assert 9.0 == stand.settings.all()["exec.timeout"]
    carrier.close()


def test_a_rule_does_not_set_the_configuration(stand: Stand) -> None:
    carrier = stand.carrier()
    stand.queue.add_rule("sandbox", "allow")
    number = stand.queue.submit(config_request("mode.network", "allow-all")).id

    assert "a person decides" in stand.stage(number, "failed").note
    assert "approve-each" == stand.settings.all()["mode.network"]
    carrier.close()


def test_files_are_written_in_the_order_of_their_requests(stand: Stand) -> None:
    seen: list[str] = []

    def note(step: str) -> None:
        seen.extend(sorted({path.name for path in stand.folder.glob("f?")} - set(seen)))

    carrier = stand.carrier(note)
    fields = [{"category": "filesystem", "action": "write", "path": f"f{place}", "content": "x"} for place in range(5)]
    numbers = [stand.queue.submit(parse_request(each, stand.project)).id for each in fields]
    stand.queue.decide(numbers, True, "cli")
    for number in numbers:
        stand.stage(number, "applied")
    note("end")

    assert [f"f{place}" for place in range(5)] == seen
    carrier.close()


def test_a_project_that_is_gone_fails_that_request(stand: Stand) -> None:
    carrier = stand.carrier()
    (stand.folder / "other").mkdir()
    other = Project(str(stand.folder / "other"))
    fields = {"category": "filesystem", "action": "write", "path": "f", "content": "x"}
    new = in_project(parse_request(fields, other), other)
    number = stand.queue.submit(new).id
    other.close()
    (stand.folder / "other").rmdir()
    stand.queue.decide([number], True, "cli")

    assert "no such file" in stand.stage(number, "failed").note
    assert not (stand.folder / "other").exists()
    carrier.close()


def test_endless_commands_of_one_sandbox_do_not_delay_anothers(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    class Ending:
        @staticmethod
        def attach(sandbox: str, socket: str | None) -> object:
            if "greedy" == sandbox:
                ended.wait(60.0)
            raise LeewardError("it is over")

    monkeypatch.setattr(carrying, "Sandbox", Ending)
    carrier = stand.carrier()
    stand.queue.add_rule("exec(true **)", "allow")

    def asks(sandbox: str, word: str) -> int:
        return stand.queue.submit(command_request(command_order(["true", word]), sandbox=sandbox)).id

    greedy = [asks("greedy", f"{place}") for place in range(carrying.MOST_COMMANDS + 6)]
    try:
        stand.stage(asks("other", "1"), "failed")
        states = [request.stage for request in map(stand.queue.get, greedy) if request is not None]
        assert carrying.MOST_OF_ONE >= states.count("applying")
    finally:
        ended.set()
    for number in greedy:
        stand.stage(number, "failed")
    carrier.close()


def test_a_rule_does_not_push_to_a_folder_of_this_host(stand: Stand) -> None:
    """Hooks are run there, and a project's configuration says where it is."""
    carrier = stand.carrier()
    stand.queue.add_rule("git(main)", "allow")
    order = push_order(str(stand.folder), str(stand.folder / "remote"), "main", "1" * 40)
    number = stand.queue.submit(NewRequest(branch("main"), "push", payload=pack_order(order))).id

    assert "a person decides" in stand.stage(number, "failed").note
    carrier.close()
