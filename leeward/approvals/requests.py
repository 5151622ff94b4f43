"""
A request: its content and its decision, and which requests are accepted at all.

Runs in:   the operator's program; pure.
Trust:     none in the content. Texts are bounded here and escaped where they are shown.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from leeward.approvals.rules import category_of
from leeward.approvals.subjects import (
    BranchName,
    Endpoint,
    Invocation,
    NamedPackage,
    ProjectPath,
    RuleSubject,
    SandboxAction,
)
from leeward.errors import BadRequest, Bug, Busy
from leeward.spec.hosts import parse_host

STATUSES = ("pending", "approved", "denied", "expired", "superseded")

#: Who decides.
DECIDERS = ("cli", "page", "rule", "mode", "expiry", "shutdown", "supersession", "stale")

#: What is to be carried out: nothing; not begun; begun; done; not done, for a reason; done as far as can be told.
STAGES = ("", "due", "applying", "applied", "failed")

#: Seconds after which a request that nobody has decided expires; the other categories' don't.
LASTING: Mapping[str, float] = {"network": 300.0}

#: Characters of the texts, and bytes of metadata as JSON and of what is to be carried out, at most.
MOST_ACTION, MOST_DESCRIPTION, MOST_REASON, MOST_METADATA, MOST_PAYLOAD = 100, 65536, 4096, 65536, 16 << 20

#: How deep metadata is nested, at most.
MOST_DEPTH = 20


@dataclass(frozen=True, slots=True)
class NewRequest:
    """
    What is asked.

    Attributes:
        subject: what rules decide by.
        action: one word: "connect", "write", "edit", "delete", "apply", "run", "add", "remove", "push".
        description: for the person who decides.
        reason: why whoever asks wants it.
        metadata: for JSON.
        sandbox: its id, as the daemon gives it.
        asker: who asks in it.
        payload: what is carried out once it is approved; None where somebody merely waits for the answer.
        project: the folder of the project that the sandbox works on; "" where it works on none. Rules of other projects
            don't decide.
    """

    subject: RuleSubject
    action: str
    description: str = ""
    reason: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    sandbox: str = ""
    asker: str = ""
    payload: bytes | None = None
    project: str = ""


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """
    A request of the queue.

    Attributes:
        id: of the store; never given twice.
        category: of rules.
        action: as it was asked.
        subject: as it was asked.
        description: as it was asked.
        reason: as it was asked.
        metadata: as it was asked.
        sandbox: as it was asked.
        asker: as it was asked.
        digest: SHA-256 of all that was asked, what is to be carried out among it, in hexadecimal.
        created: seconds since the epoch.
        expires: seconds since the epoch; None if it doesn't.
        status: one of STATUSES.
        decided_by: one of DECIDERS; "" while it is pending.
        decided: seconds since the epoch; None while it is pending.
        rule: the text of the rule that decided, or that the decision has made.
        repeats: how many times the same was asked again meanwhile.
        stage: one of STAGES.
        note: why it wasn't carried out, or which one is in its place.
        project: as it was asked.
    """

    id: int
    category: str
    action: str
    subject: RuleSubject
    description: str
    reason: str
    metadata: Mapping[str, Any]
    sandbox: str
    asker: str
    digest: str
    created: float
    expires: float | None
    status: str = "pending"
    decided_by: str = ""
    decided: float | None = None
    rule: str = ""
    repeats: int = 0
    stage: str = ""
    note: str = ""
    project: str = ""

    @property
    def replaced_by(self) -> int | None:
        """
        The id of the request that a person has approved in its place; None for none.
        """
        found = _PLACE.fullmatch(self.note) if "superseded" == self.status else None
        return None if found is None else int(found[1])


_PLACE = re.compile("request ([0-9]{1,18}) is carried out in its place")


def place_note(made: int) -> str:
    """
    The note of a request that *made* is carried out in the place of.
    """
    return f"request {made} is carried out in its place"


@dataclass(frozen=True, slots=True)
class CollapsedRow:
    """
    One row of a list.

    Attributes:
        request: the first that it stands for.
        others: how many more of the same sandbox and category it stands for.
    """

    request: ApprovalRequest
    others: int = 0


@dataclass(frozen=True, slots=True)
class Resolution:
    """
    What a decision has done.

    Attributes:
        decided: the requests that it has decided, those that its rule matched among them.
        before: those that somebody had decided before, as they are.
        unknown: ids that there are none of.
        rule: the text of the rule that was stored; "" if none was.
        project: where that rule holds; "" for everywhere.
    """

    decided: tuple[ApprovalRequest, ...] = ()
    before: tuple[ApprovalRequest, ...] = ()
    unknown: tuple[int, ...] = ()
    rule: str = ""
    project: str = ""


def checked(new: NewRequest) -> NewRequest:
    """
    *new* with texts that can be stored.

    Raises:
        BadRequest: a text, the metadata or the payload is too large, or none.
    """
    texts = []
    for name, text, most in (("an action", new.action, MOST_ACTION), ("a reason", new.reason, MOST_REASON),
                             ("a description", new.description, MOST_DESCRIPTION), ("an id", new.sandbox, 100),
                             ("an asker", new.asker, 200), ("the path of a project", new.project, 4096)):
        if len(text) > most:
            raise BadRequest(f"{name} has {most} characters at most")
        texts.append(storable(text))
    if not new.action.isascii() or not new.action.isalpha():
        raise BadRequest("an action is one word")
    try:
        written = json.dumps(dict(new.metadata), allow_nan=False)
        metadata = json.loads(written)
    except (TypeError, ValueError, RecursionError):
        raise BadRequest("metadata is what JSON can have") from None
    if _is_deeper(metadata, MOST_DEPTH):  # what is read here at some depth of calls is read at others later
        raise BadRequest(f"metadata is nested {MOST_DEPTH} deep at most")
    if len(written) > MOST_METADATA:
        raise BadRequest(f"metadata has {MOST_METADATA} bytes at most")
    if new.payload is not None and len(new.payload) > MOST_PAYLOAD:
        raise BadRequest(f"what is to be carried out has {MOST_PAYLOAD} bytes at most")
    action, reason, description, sandbox, asker, project = texts
    return NewRequest(new.subject, action, description, reason, metadata, sandbox, asker, new.payload, project)


def storable(text: str) -> str:
    """
    *text* with its half characters written out: names whose bytes are no UTF-8 have them.
    """
    return text.encode("utf-8", "backslashreplace").decode()


def _is_deeper(value: Any, than: int) -> bool:
    if not isinstance(value, (dict, list)):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return not than or any(_is_deeper(each, than - 1) for each in inner)


def digest_of(new: NewRequest) -> str:
    """
    SHA-256 of all that is asked, in hexadecimal.
    """
    payload = None if new.payload is None else hashlib.sha256(new.payload).hexdigest()
    said = [subject_text(new.subject), new.action, new.description, new.reason, dict(new.metadata), new.sandbox,
            new.asker, payload, new.project]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def subject_text(subject: RuleSubject) -> str:
    """
    *subject* as JSON in ASCII; equal texts are equal subjects.
    """
    match subject:
        case Endpoint(host=host, port=port):
            said: list[Any] = [host.text, port]
        case ProjectPath(path=text) | BranchName(name=text) | SandboxAction(text=text):
            said = [text]
        case Invocation(argv=argv, line=line, cwd=cwd):
            said = [list(argv), line, *([cwd] if cwd else [])]
        case NamedPackage(manager=manager, name=name, version=version):
            said = [manager, name, version]
    return json.dumps([category_of(subject), *said])


def subject_of(text: str) -> RuleSubject:
    """
    What `subject_text` has written.
    """
    match json.loads(text):
        case ["network", str(host), int(port)]:
            return Endpoint(parse_host(host), port)
        case ["filesystem", str(path)]:
            return ProjectPath(path)
        case ["exec", list(argv), str(line)]:
            return Invocation(tuple(argv), line)
        case ["exec", list(argv), str(line), str(cwd)]:
            return Invocation(tuple(argv), line, cwd)
        case ["packages", str(manager), str(name), str(version)]:
            return NamedPackage(manager, name, version)
        case ["git", str(name)]:
            return BranchName(name)
        case ["sandbox", str(action)]:
            return SandboxAction(action)
    raise Bug(f"a subject that nobody has written: {text:.100}")


@dataclass(frozen=True, slots=True)
class IntakeBounds:
    """
    What one sandbox may ask.

    Attributes:
        pending: requests at once.
        all_pending: requests at once, of all sandboxes.
        bytes: of what is to be carried out, of its pending requests together.
        each_minute: requests a minute; as many at once.
    """

    pending: int = 100
    all_pending: int = 20_000
    bytes: int = 64 << 20
    each_minute: int = 120


class IntakeRate:
    """
    How many requests a sandbox may still make now.

    Args:
        each_minute: of one sandbox; as many at once.
    """

    def __init__(self, each_minute: int) -> None:
        self._most = each_minute
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, sandbox: str, now: float) -> float:
        """
        Take one.

        Args:
            sandbox: whose.
            now: seconds of a monotonic clock.

        Returns:
            0.0, or the seconds after which there is one.
        """
        left, since = self._left.get(sandbox, (float(self._most), now))
        left = min(float(self._most), left + (now - since) * self._most / 60)
        if len(self._left) > 1000:  # those that could take all they may are as good as unknown
            self._left = {name: held for name, held in self._left.items()
                          if held[0] + (now - held[1]) * self._most / 60 < self._most}
        if left < 1:
            self._left[sandbox] = left, now
            return (1 - left) * 60 / self._most
        self._left[sandbox] = left - 1, now
        return 0.0


def check_room(bounds: IntakeBounds, load: tuple[int, int, int], more: int) -> None:
    """
    Args:
        bounds: of the sandbox that asks.
        load: requests of it that wait, bytes that its requests would carry out, requests of all that wait.
        more: bytes of the one that is to come.

    Raises:
        Busy: there is no room for it.
    """
    count, size, of_all = load
    if count >= bounds.pending:
        raise Busy(f"{bounds.pending} requests of this sandbox wait for a decision already")
    if size + more > bounds.bytes:
        raise Busy(f"requests of this sandbox would carry out more than {bounds.bytes} bytes already")
    if of_all >= bounds.all_pending:
        raise Busy(f"{bounds.all_pending} requests wait for a decision already")


def collapsed(requests: Iterable[ApprovalRequest], most: int = 5) -> list[CollapsedRow]:
    """
    Rows for a person: of one sandbox and category the first *most* have a row each, and the others one together.
    """
    rows: list[CollapsedRow] = []
    seen: dict[tuple[str, str], tuple[int, int]] = {}
    for request in requests:
        key = request.sandbox, request.category
        count, place = seen.get(key, (0, 0))
        if count < most:
            rows.append(CollapsedRow(request))
        elif count == most:
            place = len(rows)
            rows.append(CollapsedRow(request))
        else:
            rows[place] = CollapsedRow(rows[place].request, rows[place].others + 1)
        seen[key] = count + 1, place
    return rows
