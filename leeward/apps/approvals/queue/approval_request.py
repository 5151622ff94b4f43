"""
A request: its content, its decision and the steps on the way, and the bounds within which requests are accepted.

Trust:     none in the content. Texts are bounded here and escaped where they are shown.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from leeward.apps.approvals.queue.subjects import RuleSubject, storable, subject_text
from leeward.base.points import point
from leeward.base.token_bucket import TokenBucket
from leeward.errors import BadRequest, Busy

#: Seconds after which a pending request expires, by category; requests of other categories don't expire.
LASTING: Mapping[str, float] = {"network": 300.0}

#: Characters of the texts, bytes of the metadata as JSON, and bytes of the payload: at most.
MOST_ACTION, MOST_DESCRIPTION, MOST_REASON, MOST_METADATA, MOST_PAYLOAD = 100, 65536, 4096, 65536, 16 << 20

#: Requests of one sandbox and category that have a row each.
_SHOWN = 5

#: Depth of the nesting of metadata, at most.
MOST_DEPTH = 20


@dataclass(frozen=True, slots=True)
class NewRequest:
    """The content of a request."""

    subject: RuleSubject  # what rules are compared with
    action: str  # one word: "connect", "change", "delete", "rename", "run", "add", "remove", "push", ..
    description: str = ""  # for the person who decides
    reason: str = ""  # why the requester wants it
    metadata: Mapping[str, Any] = field(default_factory=dict)  # for JSON
    sandbox: str = ""  # its id, as the daemon gives it; "" for the operator's own request
    asker: str = ""  # the name that the requester gives itself
    payload: bytes | None = None  # the order to carry out; None if the requester only waits for the decision
    project: str = ""  # the folder that the sandbox works on; "" for none. Rules of other projects don't apply


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A request of the queue; the fields without a word are as in NewRequest. Times are seconds since the epoch."""

    id: int  # of the store; never given twice
    category: str
    action: str
    subject: RuleSubject
    description: str
    reason: str
    metadata: Mapping[str, Any]
    sandbox: str
    asker: str
    digest: str  # SHA-256 of the content with the payload, in hexadecimal
    created: float
    expires: float | None
    status: str = "pending"  # "pending", "approved", "denied", "expired" or "superseded"
    #: "cli", "page", "rule", "mode", "expiry", "shutdown", "supersession" or "stale"; "" while it is pending
    decided_by: str = ""
    decided: float | None = None
    rule: str = ""  # the text of the rule that decided, or that was stored with the decision
    repeats: int = 0  # how many times the same request came again while it was pending
    stage: str = ""  # of the order: "" where there is none, "due", "applying", "applied" or "failed"
    note: str = ""  # why the order wasn't carried out, or which request is in its place
    project: str = ""

    @property
    def replaced_by(self) -> int | None:
        """The id of the request that a person has approved in place of this one; None for none."""
        found = _PLACE.fullmatch(self.note) if self.status == "superseded" else None
        return None if found is None else int(found[1])


_PLACE = re.compile("request ([0-9]{1,18}) is carried out in its place")


def place_note(made: int) -> str:
    """The note of a request in whose place request *made* is carried out."""
    return f"request {made} is carried out in its place"


@dataclass(frozen=True, slots=True)
class CollapsedRow:
    """One row of a list: a request, and how many more of the same sandbox and category the row stands for."""

    request: ApprovalRequest
    others: int = 0


@dataclass(frozen=True, slots=True)
class Resolution:
    """The result of a decision."""

    decided: tuple[ApprovalRequest, ...] = ()  # also those that the new rule matched
    before: tuple[ApprovalRequest, ...] = ()  # the requests that had been decided before
    unknown: tuple[int, ...] = ()  # the ids without a request
    rule: str = ""  # the text of the rule that was stored; "" if none was
    project: str = ""  # where that rule holds; "" for everywhere


def checked(new: NewRequest) -> NewRequest:
    """*new* with its texts in UTF-8; BadRequest if a text, the metadata or the payload is too large or isn't valid."""
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
    if _is_deeper(metadata, MOST_DEPTH):  # a later parse may have less room for recursion than this one
        raise BadRequest(f"metadata is nested {MOST_DEPTH} deep at most")
    if len(written) > MOST_METADATA:
        raise BadRequest(f"metadata has {MOST_METADATA} bytes at most")
    if new.payload is not None and len(new.payload) > MOST_PAYLOAD:
        raise BadRequest(f"what is to be carried out has {MOST_PAYLOAD} bytes at most")
    action, reason, description, sandbox, asker, project = texts
    return NewRequest(new.subject, action, description, reason, metadata, sandbox, asker, new.payload, project)


def _is_deeper(value: Any, than: int) -> bool:
    if not isinstance(value, (dict, list)):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return not than or any(_is_deeper(each, than - 1) for each in inner)


def digest_of(new: NewRequest) -> str:
    """SHA-256 of the request's content, with its payload, in hexadecimal."""
    payload = None if new.payload is None else hashlib.sha256(new.payload).hexdigest()
    said = [subject_text(new.subject), new.action, new.description, new.reason, dict(new.metadata), new.sandbox,
            new.asker, payload, new.project]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class IntakeBounds:
    """The bounds of one sandbox's requests."""

    pending: int = 100  # pending requests of the sandbox
    all_pending: int = 20_000  # pending requests of all sandboxes together
    bytes: int = 64 << 20  # of the payloads of the sandbox's requests that are pending or being carried out
    each_minute: int = 120  # requests a minute; also the burst


#: Of the changes of one sandbox that the operator collects, instead of those of IntakeBounds. 5,000 of `all_pending`
#: stay for other requests.
COLLECTED = IntakeBounds(pending=15_000, all_pending=15_000, bytes=512 << 20)


class IntakeRate:
    """A token bucket for each sandbox, of *each_minute* requests, which is also the burst."""

    def __init__(self, each_minute: int) -> None:
        self._most = each_minute
        self._buckets: dict[str, TokenBucket] = {}

    def take(self, sandbox: str, now: float) -> float:
        """
        Take one token of *sandbox* at *now*, seconds of a monotonic clock. Returns 0.0, or the seconds until there is
        one.
        """
        bucket = self._buckets.get(sandbox)
        if bucket is None:
            if len(self._buckets) > 1000:  # a full bucket needn't be kept
                self._buckets = {name: held for name, held in self._buckets.items() if held.left(now) < self._most}
            bucket = self._buckets[sandbox] = TokenBucket(self._most, self._most / 60, now)
        return 0.0 if bucket.take(now) else bucket.wait(now)


def check_room(bounds: IntakeBounds, load: tuple[int, int, int], more: int) -> None:
    """
    Busy if one request more, with *more* bytes of payload, isn't within the bounds. *load* is of
    `RequestStore.load_of`.
    """
    count, size, of_all = load
    if count >= bounds.pending:
        raise Busy(f"{bounds.pending} requests of this sandbox wait for a decision already")
    if size + more > bounds.bytes:
        raise Busy(f"requests of this sandbox would carry out more than {bounds.bytes} bytes already")
    if of_all >= bounds.all_pending:
        raise Busy(f"{bounds.all_pending} requests wait for a decision already")


def collapsed(requests: Iterable[ApprovalRequest]) -> list[CollapsedRow]:
    """Rows of a list: the first five requests of a sandbox and category have a row each, and the others share one."""
    rows: list[CollapsedRow] = []
    seen: dict[tuple[str, str], tuple[int, int]] = {}
    for request in requests:
        key = request.sandbox, request.category
        count, place = seen.get(key, (0, 0))
        if count < _SHOWN:
            rows.append(CollapsedRow(request))
        elif count == _SHOWN:
            place = len(rows)
            rows.append(CollapsedRow(request))
        else:
            rows[place] = CollapsedRow(rows[place].request, rows[place].others + 1)
        seen[key] = count + 1, place
    return rows


@point("approvals.step")
def reached(step: str) -> None:
    """Do nothing: a step of a request begins here. A test build ends the program here, or raises."""
