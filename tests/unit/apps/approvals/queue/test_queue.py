"""The queue: one decision for each request, whoever decides, and whatever ends in between."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from leeward.apps.approvals.queue import queue as queue_module
from leeward.apps.approvals.queue.approval_request import (
    ApprovalRequest,
    IntakeBounds,
    IntakeRate,
    NewRequest,
    checked,
    collapsed,
)
from leeward.apps.approvals.queue.queue import ApprovalQueue
from leeward.apps.approvals.queue.rules import DEFAULT_DENY, parse_rule
from leeward.apps.approvals.queue.store import COPY, FILE, RequestStore, StoreDamaged, recover
from leeward.apps.approvals.queue.subjects import (
    RuleSubject,
    branch,
    endpoint,
    invocation,
    package,
    project_path,
    sandbox_action,
    subject_of,
    subject_text,
)
from leeward.base.whole_files import write_whole
from leeward.errors import BadRequest, Busy, ShuttingDown, Unsupported

WIDE = IntakeBounds(pending=100_000, all_pending=100_000, each_minute=1_000_000)


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


Open = Callable[..., ApprovalQueue]


@pytest.fixture
def opened(tmp_path: Path, clock: Clock) -> Iterator[Open]:
    """Opens the queue of this test's folder; one at a time."""
    queues: list[ApprovalQueue] = []

    def make(bounds: IntakeBounds = WIDE, **options: object) -> ApprovalQueue:
        for queue in queues:
            queue.close()
        queues[:] = [ApprovalQueue(str(tmp_path / "approvals"), bounds=bounds, clock=clock, steady=clock,
                                   **options)]  # type: ignore[arg-type]
        return queues[0]
    yield make
    for queue in queues:
        queue.close()


def asks(subject: RuleSubject, sandbox: str = "one", payload: bytes | None = None, description: str = "",
         project: str = "") -> NewRequest:
    return NewRequest(subject, "ask", description, sandbox=sandbox, payload=payload, project=project)


def file(path: str = "a", payload: bytes = b"x", sandbox: str = "one") -> NewRequest:
    return asks(project_path(path), sandbox, payload)


def test_a_request_waits_and_is_decided_once(opened: Open, clock: Clock) -> None:
    queue = opened()
    first = queue.submit(asks(invocation("ls"), description="look"))
    assert (1, "pending", "", None, None) == (first.id, first.status, first.decided_by, first.decided, first.expires)
    clock.now += 5

    done = queue.decide([first.id, 99], True, "cli")
    assert [("approved", "cli", 1005.0)] == [(each.status, each.decided_by, each.decided) for each in done.decided]
    assert (99,) == done.unknown
    again = queue.decide([first.id], False, "page")
    assert ((), "approved", "cli") == (again.decided, again.before[0].status, again.before[0].decided_by)
    assert [] == queue.pending()
    assert ["approved"] == [each.status for each in queue.recent()]


def test_of_two_simultaneous_decisions_one_counts_and_the_other_is_told(opened: Open) -> None:
    queue = opened()
    numbers = [queue.submit(asks(invocation(f"run {place}"))).id for place in range(50)]
    start, found = threading.Barrier(2), {}

    def decide(approved: bool, by: str) -> None:
        start.wait()
        found[by] = [queue.decide([number], approved, by) for number in numbers]

    threads = [threading.Thread(target=decide, args=each) for each in ((True, "cli"), (False, "page"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for number, cli, page in zip(numbers, found["cli"], found["page"], strict=True):
        winner, loser = (cli, page) if cli.decided else (page, cli)
        assert 1 == len(cli.decided) + len(page.decided)
        assert winner.decided[0] == loser.before[0] == queue.get(number)


def test_a_second_program_doesnt_decide_beside_the_first(opened: Open, tmp_path: Path) -> None:
    opened()

    with pytest.raises(Busy):
        RequestStore(str(tmp_path / "approvals"))


def test_the_queue_survives_a_restart(opened: Open, clock: Clock) -> None:
    """Requests, rules, modes and the numbers of ids."""
    queue = opened()
    queue.submit(asks(invocation("ls"), description="d\u00e9\udcff\x1b"))
    queue.decide([queue.submit(asks(invocation("rm x"))).id], False, "cli")
    queue.add_rule("exec(git status)", "allow")
    queue.set_mode("git", "deny-all")
    before = queue.pending(), queue.recent()

    queue = opened()
    assert before == (queue.pending(), queue.recent())
    assert ("deny-all", ["exec(git status)"]) == (queue.rules().mode("git"), [r.text for r in queue.rules().allow])
    assert 3 == queue.submit(asks(invocation("ls b"))).id
    assert ("approved", "rule") == (lambda each: (each.status, each.decided_by))(queue.submit(
        asks(invocation("git status"))))


def test_ids_arent_given_twice_though_requests_are_forgotten(opened: Open, tmp_path: Path) -> None:
    queue = opened()
    queue.submit(asks(invocation("ls")))
    queue.close()
    with sqlite3.connect(tmp_path / "approvals" / FILE) as raw:
        raw.execute("DELETE FROM requests")
    raw.close()

    assert 2 == opened().submit(asks(invocation("ls"))).id


def test_c303_cannot_change_a_request_or_a_decision(opened: Open, tmp_path: Path) -> None:
    """The file itself refuses it, and a second decision."""
    queue = opened()
    number = queue.submit(file()).id
    queue.decide([queue.submit(asks(invocation("ls"))).id], False, "cli")
    queue.close()
    raw = sqlite3.connect(tmp_path / "approvals" / FILE)
    for change in ("subject = 'x'", "payload = x'00'", "description = 'x'", "digest = 'x'", "expires = 9",
                   "sandbox = ''", "action = 'x'", "category = 'x'", "metadata = '{}'"):
        with pytest.raises(sqlite3.IntegrityError):
            raw.execute(f"UPDATE requests SET {change} WHERE id = {number}")
    with pytest.raises(sqlite3.IntegrityError):
        raw.execute("UPDATE requests SET status = 'approved' WHERE id = 2")
    raw.execute(f"UPDATE requests SET status = 'approved' WHERE id = {number}")  # control
    raw.close()


def test_a_file_that_is_asked_for_again_supersedes(opened: Open) -> None:
    queue = opened()
    old = queue.submit(file("x/../a", b"1"))
    elsewhere = [queue.submit(file("a", b"1", "two")), queue.submit(file("b", b"1"))]
    told: list[tuple[int, str]] = []
    queue.subscribe(lambda each: told.append((each.id, each.status)))
    new = queue.submit(file("./a", b"2"))

    assert [(old.id, "superseded"), (new.id, "pending")] == told
    assert ["pending", "pending"] == [(queue.get(each.id) or old).status for each in elsewhere]
    assert [old.id] == [each.id for each in queue.decide([old.id], True, "cli").before]
    assert None is queue.payload(old.id)
    assert b"2" == queue.payload(new.id)


def test_a_repeated_request_is_the_first_one(opened: Open) -> None:
    queue = opened()
    numbers = {queue.submit(asks(invocation("ls"))).id for _ in range(10)}

    assert {1} == numbers
    assert 9 == queue.pending()[0].repeats
    assert 2 == queue.submit(asks(invocation("ls"), description="another")).id


def test_c302_cannot_bury_a_person(opened: Open, clock: Clock) -> None:
    queue = opened(IntakeBounds(pending=3, all_pending=5, bytes=10, each_minute=6))
    for place in range(3):
        queue.submit(asks(invocation(f"run {place}")))
    with pytest.raises(Busy, match="3 requests of this sandbox"):
        queue.submit(asks(invocation("run 9")))
    for place in range(2):
        queue.submit(asks(invocation(f"run {place}"), sandbox="two"))
    with pytest.raises(Busy, match="5 requests wait"):
        queue.submit(asks(invocation("run 9"), sandbox="three"))
    queue.decide_category("exec", False, "cli", 99)
    with pytest.raises(Busy, match="10 bytes"):
        queue.submit(file(payload=b"x" * 11))
    queue.submit(file(payload=b"x" * 10, sandbox="four"))
    queue.decide([each.id for each in queue.pending()], True, "cli")
    with pytest.raises(Busy, match="10 bytes"):  # what is approved and not yet done is held as well
        queue.submit(file("b", payload=b"x", sandbox="four"))
    for _ in range(6):
        queue.submit(asks(invocation("ls"), sandbox="five"))
    with pytest.raises(Busy, match="a minute") as refused:
        queue.submit(asks(invocation("ls"), sandbox="five"))
    clock.now += refused.value.retry_after or 0
    queue.submit(asks(invocation("ls"), sandbox="five"))


def test_a_refused_request_supersedes_no_other(opened: Open) -> None:
    queue = opened(IntakeBounds(bytes=10))
    old = queue.submit(file(payload=b"1"))
    with pytest.raises(Busy):
        queue.submit(file(payload=b"x" * 11))

    assert old == queue.get(old.id)


def test_what_the_operator_collects_has_bounds_of_its_own(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that finds no room changes nothing, and those after it wait with it, since changes fit onto each other in order."""
    queue = opened(IntakeBounds(pending=1, all_pending=1, bytes=1, each_minute=1))
    old = queue.submit(file("0", payload=b"x")).id
    monkeypatch.setattr(queue_module, "COLLECTED", IntakeBounds(pending=4, all_pending=9, bytes=100))
    made = queue.collect([file(str(number), payload=b"y") for number in range(9)])
    assert ["0", "1", "2"] == [getattr(each.subject, "path", "") for each in made]
    assert "superseded" == (queue.get(old) or made[0]).status
    again = queue.collect([file(str(number), payload=b"y") for number in range(3)])
    assert [(each.id, 1) for each in made] == [(each.id, each.repeats) for each in again]
    assert [] == queue.collect([file("8", payload=b"z" * 98)])
    assert [] == queue.collect([])
    queue.decide([each.id for each in queue.pending()], False, "cli")
    assert 4 == len(queue.collect([file(str(number), payload=b"y") for number in range(9)]))


def test_the_rate_forgets_those_that_are_quiet() -> None:
    rate = IntakeRate(60)
    for place in range(5000):
        assert 0.0 == rate.take(str(place), place * 1.0)

    assert len(rate._buckets) < 1100


def test_c302_cannot_have_more_than_a_few_rows(opened: Open) -> None:
    queue = opened()
    for place in range(20):
        queue.submit(asks(invocation(f"run {place}")))
    queue.submit(asks(invocation("important"), sandbox="two"))

    rows = collapsed(queue.pending())
    assert [1, 2, 3, 4, 5, 6, 21] == [row.request.id for row in rows]
    assert [0, 0, 0, 0, 0, 14, 0] == [row.others for row in rows]


def test_requests_expire(opened: Open, clock: Clock) -> None:
    """Those of network by default, and an expired one can't be approved."""
    queue = opened()
    network, other = queue.submit(asks(endpoint("example.org"))), queue.submit(asks(branch("main")))
    assert (1300.0, None) == (network.expires, other.expires)
    assert 1300.0 == queue.expire()
    clock.now = 1300.0

    late = queue.decide([network.id, other.id], True, "cli")
    assert [("expired", "expiry")] == [(each.status, each.decided_by) for each in late.before]
    assert [other.id] == [each.id for each in late.decided]
    assert None is queue.expire()


def test_waiting_ends_with_the_decision(opened: Open) -> None:
    queue = opened()
    number = queue.submit(asks(endpoint("example.org"))).id
    waiting, found = threading.Event(), []

    def wait() -> None:
        waiting.set()
        found.append(queue.wait(number))

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait()
    queue.decide([number], True, "page")
    thread.join()

    assert [("approved", "page")] == [(each.status, each.decided_by) for each in found]
    assert None is queue.wait(99)
    pending = queue.submit(asks(branch("main")))
    assert pending == queue.wait(pending.id, timeout=0)


def test_waiting_ends_with_the_time(tmp_path: Path) -> None:
    """By the real clock, and nobody else looks."""
    queue = ApprovalQueue(str(tmp_path / "approvals"), lasting={"network": 0.05})
    found = queue.wait(queue.submit(asks(endpoint("example.org"))).id)
    queue.close()

    assert found is not None
    assert ("expired", "expiry") == (found.status, found.decided_by)


def test_the_end_denies_pending_requests_and_notifies(opened: Open) -> None:
    queue = opened()
    carried = queue.submit(file("b")).id
    queue.decide([carried], True, "cli")
    assert b"x" == queue.begin(carried)
    number = queue.submit(asks(invocation("ls"))).id
    stay = [queue.submit(asks(branch("main"), payload=b"x")).id, queue.submit(file("c")).id]
    found: list[ApprovalRequest | None] = []
    waiting = threading.Event()
    queue.subscribe(lambda each: waiting.set())
    thread = threading.Thread(target=lambda: found.append(queue.wait(number)))
    thread.start()
    queue.shut_down()
    thread.join()

    assert [("denied", "shutdown")] == [(each.status, each.decided_by) for each in found if each is not None]
    assert waiting.is_set()
    for refused in (lambda: queue.submit(asks(branch("x"))), lambda: queue.decide([1], True, "cli"),
                    lambda: queue.add_rule("git", "allow")):
        with pytest.raises(ShuttingDown):
            refused()
    queue.finish(carried)
    assert "applied" == (queue.get(carried) or queue.recent()[0]).stage
    queue.close()
    assert stay == [each.id for each in opened().pending()]  # they have all that is to be carried out


def test_always_stores_a_rule_and_decides_similar_requests(opened: Open) -> None:
    queue = opened()
    hosts = [queue.submit(asks(endpoint(host, 443), sandbox=sandbox)).id for host, sandbox in (
        ("a.example.co.uk", "one"), ("b.example.co.uk", "two"), ("other.co.uk", "one"))]
    done = queue.decide([hosts[0]], True, "cli", always=True, everywhere=True)

    assert "network(*.example.co.uk)" == done.rule
    assert [(hosts[0], "cli"), (hosts[1], "rule")] == [(each.id, each.decided_by) for each in done.decided]
    assert [hosts[2]] == [each.id for each in queue.pending()]
    assert "approved" == queue.submit(asks(endpoint("x.example.co.uk"))).status
    denied = queue.decide([hosts[2]], False, "cli", always=True, everywhere=True)
    assert "network(*.other.co.uk)" == denied.rule
    assert "denied" == queue.submit(asks(endpoint("other.co.uk"))).status
    queue.add_rule("network(*.Example.co.uk)", "allow")
    assert ["network(*.example.co.uk)"] == [rule.text for rule in queue.rules().allow]


def test_c362_cannot_use_a_rule_of_another_project(opened: Open) -> None:
    """What a person stores from a request holds in its project, unless he says everywhere. The control: it decides there."""
    queue = opened()
    one, two, none = [queue.submit(asks(branch("main"), project=project, sandbox=f"box{place}")).id
                      for place, project in enumerate(("/home/me/one", "/home/me/two", ""))]
    done = queue.decide([one], True, "cli", always=True)
    assert ("git(main)", "/home/me/one") == (done.rule, done.project)
    assert [one] == [each.id for each in done.decided]
    assert "approved" == queue.submit(asks(branch("main"), project="/home/me/one")).status

    assert [two, none] == [each.id for each in queue.pending()]
    for project in ("/home/me/two", "/home/me/one/", "/home/me", "/home/me/one/sub", ""):
        assert "pending" == queue.submit(asks(branch("main"), project=project, sandbox="new")).status
    with pytest.raises(BadRequest, match="of no project"):
        queue.decide([none], False, "cli", always=True)
    assert "pending" == getattr(queue.get(none), "status", "")
    assert "" == queue.decide([none], False, "cli", always=True, everywhere=True).project
    assert ["denied"] * 2 == [queue.submit(asks(branch("main"), project=project)).status for project in ("/x", "")]


def test_a_rule_is_of_one_project_or_of_all(opened: Open) -> None:
    queue = opened()
    queue.add_rule("git(main)", "allow", "/p")
    queue.add_rule("git(main)", "allow", "/q")
    queue.add_rule("git(main)", "allow")
    assert ["/p", "/q", ""] == [rule.project for rule in queue.rules().allow]
    assert queue.remove_rule("git(main)", "/p")
    assert not queue.remove_rule("git(main)", "/p")
    assert queue.remove_rule("git(main)", "")
    assert ["/q"] == [rule.project for rule in queue.rules().allow]
    queue.add_rule("git(main)", "deny")
    assert queue.remove_rule("git(main)")
    assert () == queue.rules().allow
    assert ["network(*.datadoghq.com)"] == [rule.text for rule in queue.rules().deny]


def test_a_replacement_of_a_request_is_approved_with_it_or_not_at_all(opened: Open) -> None:
    queue = opened()
    number = queue.submit(asks(branch("main"), payload=b"whole")).id
    done = queue.replace(number, asks(branch("main"), payload=b"part"), "page")
    assert [("approved", "page", "due")] == [(each.status, each.decided_by, each.stage) for each in done.decided]
    assert b"part" == queue.payload(done.decided[0].id)
    assert "superseded" == getattr(queue.get(number), "status", "")

    other = queue.submit(asks(branch("other"), payload=b"whole")).id
    queue.decide([other], False, "cli")
    late = queue.replace(other, asks(branch("other"), payload=b"part"), "page")
    assert ((), "denied", "cli") == (late.decided, late.before[0].status, late.before[0].decided_by)
    assert [done.decided[0].id] == [each.id for each in queue.due()]
    assert (99,) == queue.replace(99, asks(branch("x")), "cli").unknown


def test_always_without_a_possible_rule_decides_no_request(opened: Open) -> None:
    queue = opened()
    number = queue.submit(asks(invocation("a; b"))).id

    for numbers in ([number], [99]):
        with pytest.raises(BadRequest):
            queue.decide(numbers, True, "cli", always=True, everywhere=True)
    assert [number] == [each.id for each in queue.pending()]
    assert () == queue.rules().allow


def test_later_requests_are_not_decided_with_the_category(opened: Open) -> None:
    queue = opened()
    seen = [queue.submit(asks(invocation(f"run {place}"))).id for place in range(3)]
    other, later = queue.submit(asks(branch("main"))).id, queue.submit(asks(invocation("rm x"))).id

    done = queue.decide_category("exec", True, "cli", seen[-1])
    assert seen == [each.id for each in done.decided]
    assert [other, later] == [each.id for each in queue.pending()]


def test_rules_and_modes_decide_pending_requests(opened: Open) -> None:
    queue = opened(forbidden=[parse_rule("git(main)", "deny")])
    assert [*DEFAULT_DENY] == [rule.text for rule in queue.rules().deny]
    assert ("denied", "rule") == (lambda each: (each.status, each.decided_by))(queue.submit(asks(branch("main"))))
    numbers = [queue.submit(asks(each)).id for each in (branch("a"), branch("b"), invocation("ls"))]

    rule, done = queue.add_rule("git(a)", "deny")
    assert [numbers[0]] == [each.id for each in done.decided]
    assert [numbers[1]] == [each.id for each in queue.set_mode("git", "allow-all").decided]
    assert [numbers[2]] == [each.id for each in queue.pending()]
    assert queue.remove_rule(" git( a )")
    assert not queue.remove_rule(rule.text)
    assert "approved" == queue.submit(asks(branch("a"))).status
    for category, mode in (("exec", "allow-all"), ("packages", "deny-all"), ("x", "allow-all")):
        with pytest.raises(BadRequest):
            queue.set_mode(category, mode)
    queue.add_rule("exec", "allow")
    assert [numbers[2]] == [each.id for each in queue.pending()]


def test_an_approved_request_is_begun_once(opened: Open) -> None:
    queue = opened()
    number = queue.submit(file(payload=b"content")).id
    assert None is queue.begin(number)  # nobody has approved it
    queue.decide([number], True, "cli")
    assert [number] == [each.id for each in queue.due()]
    found: list[bytes | None] = []
    threads = [threading.Thread(target=lambda: found.append(queue.begin(number, "way"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [b"content"] == [each for each in found if each is not None]

    queue = opened()
    assert [(number, "way")] == [(each.id, way) for each, way in queue.interrupted()]
    assert None is queue.begin(number)
    queue.finish(number, "the host has another", stale=True)
    done = queue.get(number)
    assert done is not None
    assert ("denied", "stale", "failed") == (done.status, done.decided_by, done.stage)
    assert "the host has another" == done.note
    assert None is queue.payload(number)


def test_a_request_that_only_waits_for_an_answer_is_not_carried_out(opened: Open) -> None:
    queue = opened()
    number = queue.submit(asks(endpoint("example.org"))).id
    queue.decide([number], True, "cli")

    assert [] == queue.due()
    assert None is queue.begin(number)


def test_a_failing_subscriber_does_not_disturb_others(opened: Open) -> None:
    """And one may ask from within."""
    queue = opened()
    told: list[int] = []

    def fails(request: ApprovalRequest) -> None:
        raise ValueError("broken")

    def asks_more(request: ApprovalRequest) -> None:
        if request.id < 3:
            queue.submit(asks(branch(f"b{request.id}")))

    queue.subscribe(fails)
    queue.subscribe(asks_more)
    end = queue.subscribe(lambda each: told.append(each.id))
    queue.submit(asks(branch("main")))
    end()
    queue.submit(asks(branch("later")))

    assert [1, 2, 3] == told
    assert 4 == queue._notices.failed


@pytest.mark.parametrize("subject", [endpoint("a.org", 1), endpoint("::1"), project_path("a\udcff"), branch("a/b"),
                                     invocation(["a", "\udc80"]), invocation("a; b"), package("npm", "@a/b", "1"),
                                     sandbox_action("x")])
def test_subjects_are_stored(subject: RuleSubject, opened: Open) -> None:
    assert subject == subject_of(subject_text(subject))
    assert subject == opened().submit(asks(subject)).subject


def nested(depth: int) -> dict[str, object]:
    found: dict[str, object] = {}
    for _ in range(depth):
        found = {"a": [found]}
    return found


@pytest.mark.parametrize("new", [
    NewRequest(branch("a"), "two words"), NewRequest(branch("a"), ""), NewRequest(branch("a"), "x" * 101),
    NewRequest(branch("a"), "x", "d" * 65537), NewRequest(branch("a"), "x", metadata={"a": {1, 2}}),
    NewRequest(branch("a"), "x", metadata={"a": "x" * 65537}),
    NewRequest(branch("a"), "x", metadata={"a": float("nan")}), NewRequest(branch("a"), "x", metadata=nested(30)),
    NewRequest(branch("a"), "x", metadata=nested(5000)),
    NewRequest(branch("a"), "x", payload=b"x" * ((16 << 20) + 1)), NewRequest(branch("a"), "x", reason="r" * 5000)],
    ids=range(11))
def test_a_request_that_is_too_large_is_refused(new: NewRequest) -> None:
    with pytest.raises(BadRequest):
        checked(new)


def test_the_folder_is_the_users_alone(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    with pytest.raises(Unsupported, match="chmod 700"):
        RequestStore(str(folder))
    folder.chmod(0o700)
    store = RequestStore(str(folder))
    store.insert(asks(branch("a")), 0.0, None)
    assert [0o600] * len(os.listdir(folder)) == [(folder / name).stat().st_mode & 0o777 for name in os.listdir(folder)]
    assert f"{FILE}-wal" in os.listdir(folder)
    store.close()


def test_a_file_of_another_version_isnt_touched(tmp_path: Path) -> None:
    RequestStore(str(tmp_path / "x")).close()
    with sqlite3.connect(tmp_path / "x" / FILE) as raw:
        raw.execute("PRAGMA user_version = 99")
    raw.close()
    with pytest.raises(Unsupported, match="version 99"):
        RequestStore(str(tmp_path / "x"))


def damaged(folder: Path, how: str) -> None:
    """Do to the file of requests what disks and people do."""
    path = folder / FILE
    content = path.read_bytes()
    match how:
        case "removed":
            path.unlink()
        case "empty":
            path.write_bytes(b"")
        case "garbage":
            path.write_bytes(os.urandom(len(content)))
        case "text":
            path.write_text("not a database\n" * 1000)
        case "cut":
            path.write_bytes(content[:len(content) // 2])
        case "cut to its head":
            path.write_bytes(content[:100])
        case "older":
            with sqlite3.connect(path) as raw:
                raw.execute("DELETE FROM rules WHERE text LIKE '%bad%'")
            raw.close()


@pytest.mark.parametrize("how", ["removed", "empty", "garbage", "text", "cut", "cut to its head", "older"])
def test_c440_cannot_start_without_the_rules_that_were_stored(tmp_path: Path, how: str) -> None:
    """The start is refused with the cure, which brings them back; and the old file stays."""
    folder = tmp_path / "approvals"
    queue = ApprovalQueue(str(folder))
    queue.add_rule("network(*.bad.example)", "deny")
    queue.add_rule("network(good.example)", "allow", "/p")
    queue.set_mode("network", "deny-all")
    before = queue.rules()
    queue.close()
    ApprovalQueue(str(folder)).close()  # control: a whole file is taken
    assert recover(str(folder)) is None

    damaged(folder, how)
    for _ in range(2):
        with pytest.raises(StoreDamaged, match="leeward approvals recover"):
            ApprovalQueue(str(folder))
    found = recover(str(folder))
    assert found is not None
    assert os.path.exists(found[0])
    queue = ApprovalQueue(str(folder))
    after = queue.rules()
    assert {*before.deny} <= {*after.deny}
    assert (before.allow, before.modes) == (after.allow, after.modes)
    queue.close()


def test_rules_that_nobody_knows_any_more(tmp_path: Path) -> None:
    folder = tmp_path / "approvals"
    ApprovalQueue(str(folder)).close()
    (folder / COPY).unlink()
    damaged(folder, "garbage")
    with pytest.raises(BadRequest, match="--without-rules"):
        recover(str(folder))
    assert recover(str(folder), without_rules=True) is not None
    ApprovalQueue(str(folder)).close()


def test_rules_that_deny_are_read_from_a_file_without_a_copy(tmp_path: Path) -> None:
    """Which a file that was cut in another table still gives; rules that allow aren't taken from it."""
    folder = tmp_path / "approvals"
    queue = ApprovalQueue(str(folder))
    queue.add_rule("network(bad.example)", "deny")
    queue.add_rule("network(good.example)", "allow")
    queue.close()
    (folder / COPY).unlink()
    content = bytearray((folder / FILE).read_bytes())
    with sqlite3.connect(folder / FILE) as raw:
        page = raw.execute("SELECT rootpage FROM sqlite_master WHERE name = 'pending_of'").fetchone()[0]
    raw.close()
    content[(page - 1) * 4096:page * 4096] = os.urandom(4096)
    (folder / FILE).write_bytes(content)
    with pytest.raises(StoreDamaged):
        ApprovalQueue(str(folder))
    found = recover(str(folder))
    assert found is not None
    assert {("deny", "network(bad.example)", ""), ("deny", DEFAULT_DENY[0], "")} == set(found[1].rules)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"rules": [["deny", "nothing(x)", ""]], "modes": {}}',
                                  '{"rules": [], "modes": {"exec": "allow-all"}}', "[" * 100_000])
def test_a_copy_that_cannot_be_read_is_no_copy(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "approvals"
    ApprovalQueue(str(folder)).close()
    (folder / COPY).write_text(text)
    with pytest.raises(Unsupported, match="which can't be read"):
        ApprovalQueue(str(folder))


def test_a_file_that_is_removed_while_it_is_in_use_takes_nothing_more(tmp_path: Path) -> None:
    queue = ApprovalQueue(str(tmp_path / "approvals"))
    queue.add_rule("network(bad.example)", "deny")
    damaged(tmp_path / "approvals", "removed")
    with pytest.raises(StoreDamaged, match="while it was in use"):
        queue.submit(asks(branch("a")))
    with pytest.raises(StoreDamaged, match="while it was in use"):
        queue.add_rule("network(x.example)", "allow")
    queue.close()


#: The tables of version 1, as it made them.
VERSION_1 = """
CREATE TABLE requests (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    category TEXT NOT NULL, action TEXT NOT NULL, subject TEXT NOT NULL, description TEXT NOT NULL,
    reason TEXT NOT NULL, metadata TEXT NOT NULL, sandbox TEXT NOT NULL, asker TEXT NOT NULL, digest TEXT NOT NULL,
    payload BLOB, created REAL NOT NULL, expires REAL,
    status TEXT NOT NULL DEFAULT 'pending', decided_by TEXT NOT NULL DEFAULT '', decided REAL,
    rule TEXT NOT NULL DEFAULT '', repeats INTEGER NOT NULL DEFAULT 0,
    stage TEXT NOT NULL DEFAULT '', note TEXT NOT NULL DEFAULT '', way TEXT NOT NULL DEFAULT '');
CREATE INDEX pending ON requests (id) WHERE status = 'pending';
CREATE INDEX pending_category ON requests (category) WHERE status = 'pending';
CREATE INDEX pending_of ON requests (sandbox, subject) WHERE status = 'pending';
CREATE INDEX expiring ON requests (expires) WHERE status = 'pending' AND expires IS NOT NULL;
CREATE INDEX staged ON requests (stage) WHERE stage = 'due' OR stage = 'applying';
CREATE TRIGGER asked_once BEFORE UPDATE OF
    id, category, action, subject, description, reason, metadata, sandbox, asker, digest, created, expires ON requests
BEGIN SELECT RAISE(ABORT, 'what was asked does not change'); END;
CREATE TRIGGER payload_once BEFORE UPDATE OF payload ON requests WHEN NEW.payload IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'what was asked does not change'); END;
CREATE TRIGGER decided_once BEFORE UPDATE OF status ON requests
    WHEN OLD.status != 'pending' AND NOT (OLD.status = 'approved' AND NEW.status = 'denied' AND NEW.stage = 'failed')
BEGIN SELECT RAISE(ABORT, 'what was decided does not change'); END;
CREATE TABLE rules (effect TEXT NOT NULL, text TEXT NOT NULL, made REAL NOT NULL, PRIMARY KEY (effect, text));
CREATE TABLE modes (category TEXT PRIMARY KEY, mode TEXT NOT NULL);
INSERT INTO rules VALUES ('deny', 'network(*.datadoghq.com)', 0), ('allow', 'exec(make)', 1), ('allow', 'git(a)', 2);
INSERT INTO requests
    (category, action, subject, description, reason, metadata, sandbox, asker, digest, payload, created)
VALUES ('filesystem', 'write', '["filesystem", "a"]', '', '', '{"project": "/home/me/p"}', 'box', '', 'x', X'61', 1000),
    ('exec', 'run', '["exec", ["make"], ""]', '', '', '{"cwd": "sub"}', 'box', '', 'y', X'62', 1000),
    ('exec', 'run', '["exec", ["ls"], ""]', '', '', '{"cwd": ""}', 'box', '', 'z', X'63', 1000);
PRAGMA user_version = 1;
"""


def test_a_file_of_version_1_is_brought_up_to_date(tmp_path: Path, opened: Open) -> None:
    """Its rules hold everywhere, as they did; its requests keep what was asked."""
    folder = tmp_path / "approvals"
    folder.mkdir(mode=0o700)
    with sqlite3.connect(folder / FILE) as raw:
        raw.executescript(VERSION_1)
    raw.close()
    for _ in range(2):  # once, and then it is of this version
        queue = opened()
        assert [("exec(make)", ""), ("git(a)", "")] == [(each.text, each.project) for each in queue.rules().allow]
        assert ["network(*.datadoghq.com)"] == [rule.text for rule in queue.rules().deny]
        file, run, other = queue.pending()
        assert ("/home/me/p", "") == (file.project, run.project)
        assert (invocation("make", "sub"), invocation("ls")) == (run.subject, other.subject)
        assert [b"a", b"b", b"c"] == [queue.payload(each.id) for each in (file, run, other)]
        queue.set_mode("git", "approve-bulk")  # what is pending is looked at again
        assert 3 == len(queue.pending())
        queue.close()
    with sqlite3.connect(folder / FILE) as raw, pytest.raises(sqlite3.IntegrityError, match="does not change"):
        raw.execute("UPDATE requests SET project = '/x'")
    raw.close()


def test_old_decisions_are_forgotten_and_pending_requests_stay(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leeward.apps.approvals.queue.store.KEPT", 10)
    queue = opened()
    first = queue.submit(asks(branch("first"))).id
    for place in range(30):
        queue.decide([queue.submit(asks(branch(f"b{place}"))).id], False, "cli")

    kept = [each.id for each in queue.recent()]
    assert first in kept
    assert 10 <= len(kept) <= 12


def test_ten_thousand_requests_are_shown_by_their_first_rows(opened: Open) -> None:
    """
    The first rows come from an index, whatever lies behind them: neither the others nor what is to be carried out is
    read.
    """
    queue = opened()
    with queue._store.transaction():
        for place in range(10_000):
            new = asks(invocation(f"run {place}"), payload=b"x" * 1000, sandbox=str(place % 200))
            queue._store.insert(new, 0.0, None)

    assert list(range(1, 51)) == [each.id for each in queue.pending()]
    assert list(range(9951, 10_001)) == [each.id for each in queue.pending(after=9950)]
    plans = [" ".join(row[3] for row in queue._store._file.execute(f"EXPLAIN QUERY PLAN {query}")) for query in (
        "SELECT id FROM requests INDEXED BY pending WHERE status = 'pending' AND id > 5 ORDER BY id LIMIT 50",
        "SELECT id FROM requests WHERE status = 'pending' AND sandbox = 'a' AND subject = 'b'",
        "SELECT min(expires) FROM requests WHERE status = 'pending' AND expires IS NOT NULL",
        "SELECT id FROM requests WHERE stage = 'due' ORDER BY id")]
    assert ["pending", "pending_of", "expiring", "staged"] == [plan.split("INDEX ")[1].split()[0] for plan in plans]
    assert not any("TEMP B-TREE" in plan for plan in plans[:3])
    assert "pending" == queue.submit(asks(branch("one-more"))).status


def test_metadata_comes_back_as_json_has_it(opened: Open) -> None:
    request = opened().submit(NewRequest(branch("a"), "x", metadata={1: "a", "b": (1, None), "c": nested(9)}))

    assert {"1": "a", "b": [1, None], "c": nested(9)} == request.metadata


def test_a_decision_by_an_unknown_name_is_refused(opened: Open) -> None:
    queue = opened()
    queue.submit(asks(branch("a")))
    for by in ("", "rule", "agent"):
        with pytest.raises(BadRequest):
            queue.decide([1], True, by)
    assert [1] == [each.id for each in queue.pending()]


def test_on_a_full_disk_no_request_is_taken_or_decided(opened: Open) -> None:
    """Once there is room again all is as before."""
    queue = opened()
    number = queue.submit(file("a", b"1")).id
    pages = queue._store._one("PRAGMA page_count")[0]
    queue._store._file.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(Busy, match="full"):
        queue.submit(file("a", bytes(100_001)))
    assert [number] == [each.id for each in queue.pending()]
    queue._store._file.execute("PRAGMA max_page_count = 100000")
    newer = queue.submit(file("a", bytes(100_000)))
    assert [newer.id] == [each.id for each in queue.decide([number, newer.id], True, "cli").decided]


def test_without_room_for_the_copy_of_the_rules_none_is_changed(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else who asked would never hear of an approval, and a rule that is gone would be missed at the next start."""
    def full(*_what: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    queue, told = opened(), list[str]()
    queue.add_rule("exec(bad)", "deny")
    number, rules = queue.submit(asks(invocation("good"))).id, queue.rules()
    queue.subscribe(lambda each: told.append(each.status))
    with monkeypatch.context() as disk:
        disk.setattr("leeward.apps.approvals.queue.store.write_whole", full)
        for change in (partial(queue.decide, [number], True, "cli", always=True, everywhere=True),
                       partial(queue.remove_rule, "exec(bad)"), partial(queue.set_mode, "network", "deny-all")):
            with pytest.raises(Busy, match="copy"):
                change()
            assert ([number], rules) == ([each.id for each in queue.pending()], queue.rules())
    queue.decide([number], True, "cli", always=True, everywhere=True)
    assert ["approved"] == told
    assert queue.remove_rule("exec(bad)")
    assert [DEFAULT_DENY[0]] == [rule.text for rule in opened().rules().deny]


def test_a_file_that_sqlite_cannot_open_is_busy_until_it_can(tmp_path: Path) -> None:
    """As on a full disk: it is a refusal that the command line shows, and no defect."""
    folder = tmp_path / "approvals"
    ApprovalQueue(str(folder)).close()
    beside = folder / f"{FILE}-shm"
    beside.mkdir()
    with pytest.raises(Busy, match="can't be used"):
        ApprovalQueue(str(folder))
    beside.rmdir()
    ApprovalQueue(str(folder)).close()


@pytest.mark.parametrize("writes", [0, 1])
def test_whatever_ends_a_change_of_rules_the_next_start_misses_none(
        opened: Open, monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    """Before the copy's first file of a change, or its second."""
    for change, effect in (("add_rule", ["deny"]), ("remove_rule", [])):
        queue, left = opened(), [writes]

        def ends(path: str, content: bytes, left: list[int] = left, **_options: bool) -> None:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            write_whole(path, content)

        with monkeypatch.context() as end:
            end.setattr("leeward.apps.approvals.queue.store.write_whole", ends)
            with pytest.raises(KeyboardInterrupt):
                getattr(queue, change)("exec(bad)", *effect)
        opened().add_rule("exec(bad)", "deny")


def test_expired_requests_are_reported_though_the_next_is_refused(opened: Open, clock: Clock) -> None:
    queue, told = opened(IntakeBounds(each_minute=1)), list[str]()
    queue.subscribe(lambda each: told.append(each.status))
    queue.submit(asks(endpoint("example.org")))
    clock.now += 300
    queue._rate.take("one", clock.now)
    with pytest.raises(Busy):
        queue.submit(asks(endpoint("example.net")))
    assert ["pending", "expired"] == told


def test_pending_requests_are_counted_by_category_and_listed_by_sandbox(opened: Open) -> None:
    queue = opened()
    for number, sandbox in enumerate(("a", "b", "a")):
        queue.submit(NewRequest(branch(f"x{number}"), "push", sandbox=sandbox))
    queue.submit(NewRequest(endpoint("example.org"), "connect", sandbox="a"))
    assert {"git": 3, "network": 1} == queue.counts()

    queue.decide([1], False, "cli")

    assert {"git": 2, "network": 1} == queue.counts()
    assert [3, 4] == [each.id for each in queue.pending(sandbox="a")]
    assert [3] == [each.id for each in queue.pending(sandbox="a", category="git")]
    assert [4, 3, 1] == [each.id for each in queue.recent(sandbox="a")]
    assert [] == queue.recent(sandbox="c")
