"""
The file of requests and rules: each change is one transaction, and triggers keep a request's content unchanged.

Runs in:   one process at a time, by a lock that the kernel releases when the process ends.
Trust:     the folder is used only if no other user can enter it.
Copy:      rules and modes are also in a file of their own, written with each change of them. A file of requests that is
           damaged, or lacks what the copy denies, isn't used: `recover` makes a new one with the copy's rules.
Source:    sqlite.org/wal.html; flock(2)
"""

from __future__ import annotations

import json
import os
import sqlite3
import stat
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from leeward.apps.approvals.queue.approval_request import ApprovalRequest, NewRequest, digest_of, place_note, reached
from leeward.apps.approvals.queue.rules import DEFAULT_DENY, Effect, check_mode, parse_rule
from leeward.apps.approvals.queue.subjects import subject_of, subject_text
from leeward.base.closing import OwnedFd, on_failure
from leeward.base.file_locks import locked
from leeward.base.whole_files import write_whole
from leeward.errors import BadRequest, Busy, Unsupported, reason_of

FORMAT = 2
FILE, COPY = "requests.sqlite", "rules.json"

#: Ids that are kept, counted from the newest; older requests are deleted unless they are pending or being carried out.
KEPT = 10_000

_SCHEMA = """
CREATE TABLE requests (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    category TEXT NOT NULL, action TEXT NOT NULL, subject TEXT NOT NULL, description TEXT NOT NULL,
    reason TEXT NOT NULL, metadata TEXT NOT NULL, sandbox TEXT NOT NULL, asker TEXT NOT NULL, digest TEXT NOT NULL,
    payload BLOB, created REAL NOT NULL, expires REAL,
    status TEXT NOT NULL DEFAULT 'pending', decided_by TEXT NOT NULL DEFAULT '', decided REAL,
    rule TEXT NOT NULL DEFAULT '', repeats INTEGER NOT NULL DEFAULT 0,
    stage TEXT NOT NULL DEFAULT '', note TEXT NOT NULL DEFAULT '', way TEXT NOT NULL DEFAULT '',
    project TEXT NOT NULL DEFAULT '');
CREATE INDEX pending ON requests (id) WHERE status = 'pending';
CREATE INDEX pending_category ON requests (category) WHERE status = 'pending';
CREATE INDEX pending_of ON requests (sandbox, subject) WHERE status = 'pending';
CREATE INDEX expiring ON requests (expires) WHERE status = 'pending' AND expires IS NOT NULL;
CREATE INDEX staged ON requests (stage) WHERE stage = 'due' OR stage = 'applying';
CREATE TRIGGER payload_once BEFORE UPDATE OF payload ON requests WHEN NEW.payload IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'what was asked does not change'); END;
CREATE TRIGGER decided_once BEFORE UPDATE OF status ON requests
    WHEN OLD.status != 'pending' AND NOT (OLD.status = 'approved' AND NEW.status = 'denied' AND NEW.stage = 'failed')
BEGIN SELECT RAISE(ABORT, 'what was decided does not change'); END;
CREATE TABLE modes (category TEXT PRIMARY KEY, mode TEXT NOT NULL);
"""

#: The part of the schema that is new in version 2. The project of a rule for all projects is "".
_SCHEMA_2 = """
CREATE TRIGGER asked_once BEFORE UPDATE OF
    id, category, action, subject, description, reason, metadata, sandbox, asker, digest, created, expires, project
    ON requests
BEGIN SELECT RAISE(ABORT, 'what was asked does not change'); END;
CREATE TABLE rules (effect TEXT NOT NULL, text TEXT NOT NULL, project TEXT NOT NULL, made REAL NOT NULL,
    PRIMARY KEY (effect, text, project));
"""

#: The migration from version 1, whose rules hold in all projects. There a request about a file has its project in its
#: metadata, and other requests have none.
_FROM_1 = f"""
ALTER TABLE requests ADD COLUMN project TEXT NOT NULL DEFAULT '';
UPDATE requests SET project = coalesce(json_extract(metadata, '$.project'), '') WHERE category = 'filesystem';
DROP TRIGGER asked_once;
UPDATE requests SET subject = json_insert(subject, '$[#]', json_extract(metadata, '$.cwd'))
    WHERE category = 'exec' AND status = 'pending' AND coalesce(json_extract(metadata, '$.cwd'), '') != '';
ALTER TABLE rules RENAME TO rules_1;
{_SCHEMA_2}
INSERT INTO rules (effect, text, project, made) SELECT effect, text, '', made FROM rules_1 ORDER BY rowid;
DROP TABLE rules_1;
"""

#: The columns of a row, in the order of ApprovalRequest's fields.
_COLUMNS = ("id, category, action, subject, description, reason, metadata, sandbox, asker, digest, created, expires, "
            "status, decided_by, decided, rule, repeats, stage, note, project")


class StoreDamaged(Unsupported):
    """The file of requests and rules is damaged, or lacks rules that were stored."""

    def __init__(self, folder: str, why: str) -> None:
        super().__init__("the file of approvals", have=f"{os.path.join(folder, FILE)}: {why}",
                         need="the file with the stored rules",
                         cure="`leeward approvals recover` makes a new one with the rules, and keeps this one")


@dataclass(frozen=True, slots=True)
class RuleCopy:
    """The stored rules, each with effect, text and project, and the modes by category."""

    rules: tuple[tuple[Effect, str, str], ...]
    modes: Mapping[str, str]


class RequestStore:
    """
    The file of requests and rules in a folder of the user. Callers use it one at a time. *restore* puts the rules of
    the copy into a new file.

    Busy if another process has the folder's lock, Unsupported if other users can enter the folder or the file has
    another version, StoreDamaged if the file is damaged or lacks rules.
    """

    def __init__(self, folder: str, *, restore: bool = False) -> None:
        self._folder, self._restore = folder, restore
        os.makedirs(folder, mode=0o700, exist_ok=True)
        about = os.stat(folder)
        if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o077:
            raise Unsupported("a folder for approvals", have=f"{folder}, which others may enter or own",
                              need="one of this user's with mode 0700", cure=f"chmod 700 {folder}")
        self._lock = _locked(folder)
        try:
            path = os.path.join(folder, FILE)
            # The files that SQLite puts beside it have its mode.
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            self._own = os.fstat(fd)
            os.close(fd)
            # Threads use the one connection in turn, by the lock of ApprovalQueue.
            self._file = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            with on_failure(self._file.close):
                for pragma in ("journal_mode = WAL", "synchronous = FULL", "trusted_schema = OFF"):
                    self._file.execute(f"PRAGMA {pragma}")
                self._prepare(folder)
                self._copy_rules(self._all_rules())
        except BaseException as error:
            os.close(self._lock)
            raise self._told(error) from None

    def _prepare(self, folder: str) -> None:
        with self.transaction():
            version = self._one("PRAGMA user_version")[0]
            if version not in (0, 1, FORMAT):
                raise Unsupported("the file of approvals", have=f"version {version} in {folder}",
                                  need=f"version {FORMAT}")
            if self._one("PRAGMA quick_check(1)")[0] != "ok":
                raise StoreDamaged(folder, "a part of it can't be read")
            copied = read_copy(folder)
            if version == 0 and copied is not None and not self._restore:
                raise StoreDamaged(folder, "it was removed or is empty, though rules were stored")
            for statement in _statements({0: _SCHEMA + _SCHEMA_2, 1: _FROM_1}.get(version, "")):
                self._file.execute(statement)
            self._file.execute(f"PRAGMA user_version = {FORMAT}")
            for text in DEFAULT_DENY if version == 0 else ():
                self.add_rule("deny", text, "", 0.0)
            if self._restore and copied is not None:
                for effect, text, project in copied.rules:
                    self.add_rule(effect, text, project, 0.0)
                for category, mode in copied.modes.items():
                    self.set_mode(category, mode)
            elif copied is not None and (lost := {rule for rule in copied.rules if rule[0] == "deny"} - self._all_rules()):
                raise StoreDamaged(folder, f"it lacks {len(lost)} rules that deny")

    def _all_rules(self) -> set[tuple[Effect, str, str]]:
        return set(self._file.execute("SELECT effect, text, project FROM rules"))

    def _copy_rules(self, rules: set[tuple[Effect, str, str]]) -> None:
        """Write the copy of *rules* and the modes."""
        _write_copy(self._folder, RuleCopy(tuple(sorted(rules)), self.modes()))

    def close(self) -> None:
        self._file.close()
        os.close(self._lock)

    @contextmanager
    def transaction(self, *, lasting: bool = True) -> Iterator[None]:
        """
        A context whose statements are one transaction; an exception rolls it back. Busy if the disk can't be written,
        StoreDamaged if the file is damaged, or another one is in its place.

        Without *lasting* it doesn't wait for the disk: a crash of the machine, not of this program, may undo it and
        those after it that aren't lasting either.
        """
        self._file.execute(f"PRAGMA synchronous = {'FULL' if lasting else 'NORMAL'}")
        try:
            self._check_still()
            self._file.execute("BEGIN IMMEDIATE")
            yield
            self._file.execute("COMMIT")
        except BaseException as error:
            if self._file.in_transaction:  # SQLite rolls back by itself in some cases, such as a full disk
                self._file.execute("ROLLBACK")
            raise self._told(error) from None

    def _told(self, error: BaseException) -> BaseException:
        """What a caller gets for *error*: SQLite says by DatabaseError itself that the file isn't as it has written it."""
        if type(error) is sqlite3.DatabaseError:
            return StoreDamaged(self._folder, str(error))
        return Busy(f"the file of approvals can't be used: {error}") if isinstance(error, sqlite3.OperationalError) else error

    @contextmanager
    def changing_rules(self) -> Iterator[None]:
        """
        A transaction that changes rules or modes. If their copy can't be written it is Busy, and nothing is changed. At no
        time does the copy have a rule that denies and the file lacks.
        """
        with self.transaction():
            before = self._all_rules()
            yield
            self._copy_rules(before & self._all_rules())
        with suppress(Busy):  # the disk is full since a moment: the next change writes the new ones, or the next start
            self._copy_rules(self._all_rules())

    def _check_still(self) -> None:
        try:
            if os.path.samestat(self._own, os.lstat(os.path.join(self._folder, FILE))):
                return
        except OSError:
            pass
        raise StoreDamaged(self._folder, "it was removed or replaced while it was in use")

    def _one(self, statement: str, *values: Any) -> Any:
        return self._file.execute(statement, values).fetchone()

    def insert(self, new: NewRequest, now: float, expires: float | None) -> int:
        """Store a pending request; returns its id."""
        cursor = self._file.execute(
            "INSERT INTO requests (category, action, subject, description, reason, metadata, sandbox, asker, digest, "
            "payload, created, expires, project) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (new.subject.category, new.action, subject_text(new.subject), new.description, new.reason,
             json.dumps(dict(new.metadata)), new.sandbox, new.asker, digest_of(new), new.payload, now, expires,
             new.project))
        return int(cursor.lastrowid or 0)

    def _requests(self, rest: str, *values: Any) -> list[ApprovalRequest]:
        """The requests that *rest* of a statement selects."""
        return list(map(_request, self._file.execute(f"SELECT {_COLUMNS} FROM requests {rest}", values)))

    def get(self, number: int) -> ApprovalRequest | None:
        return next(iter(self._requests("WHERE id = ?", number)), None)

    def payload(self, number: int) -> bytes | None:
        """The order of a request; None if it has none, or none any more."""
        row = self._one("SELECT payload FROM requests WHERE id = ?", number)
        return None if row is None or row[0] is None else bytes(row[0])

    def has_payload(self, number: int) -> bool:
        return self._one("SELECT 1 FROM requests WHERE id = ? AND payload IS NOT NULL", number) is not None

    def pending(self, limit: int, after: int = 0, category: str | None = None,
                sandbox: str | None = None) -> list[ApprovalRequest]:
        """Pending requests with ids above *after*, the oldest first; only of *category* and *sandbox*, if these are given."""
        index = "pending" if sandbox is None else "pending_of"
        which, values = _which(category=category, sandbox=sandbox)
        return self._requests(f"INDEXED BY {index} WHERE status = 'pending' AND id > ?{which} ORDER BY id LIMIT ?",
                              after, *values, limit)

    def counts(self, sandbox: str | None = None) -> dict[str, int]:
        """The numbers of pending requests, of all or of *sandbox*, by category."""
        which, values = _which(sandbox=sandbox)
        return dict(self._file.execute(f"SELECT category, count(*) FROM requests WHERE status = 'pending'{which} "
                                       "GROUP BY category", values))

    def pending_of(self, sandbox: str, subject: str) -> list[ApprovalRequest]:
        return self._requests("WHERE status = 'pending' AND sandbox = ? AND subject = ?", sandbox, subject)

    def recent(self, limit: int, sandbox: str | None = None) -> list[ApprovalRequest]:
        """Requests of any status, the newest first."""
        which, values = _which(sandbox=sandbox)
        return self._requests(f"WHERE id > 0{which} ORDER BY id DESC LIMIT ?", *values, limit)

    def load_of(self, sandbox: str) -> tuple[int, int, int]:
        """The pending requests of *sandbox*, the bytes of its payloads that are kept, and all pending requests."""
        count, size = self._one("SELECT count(*), coalesce(sum(length(payload)), 0) FROM requests "
                                "WHERE status = 'pending' AND sandbox = ?", sandbox)
        begun = self._one("SELECT coalesce(sum(length(payload)), 0) FROM requests "
                          "WHERE (stage = 'due' OR stage = 'applying') AND sandbox = ?", sandbox)[0]
        return count, size + begun, self._one("SELECT count(*) FROM requests INDEXED BY pending "
                                              "WHERE status = 'pending'")[0]

    def repeat(self, number: int) -> None:
        self._file.execute("UPDATE requests SET repeats = repeats + 1 WHERE id = ?", (number,))

    def decide(self, number: int, status: str, by: str, now: float, rule: str = "") -> bool:
        """Decide a pending request; False if it isn't pending, or has expired."""
        done = self._file.execute(
            "UPDATE requests SET status = ?1, decided_by = ?2, decided = ?3, rule = ?4, "
            "stage = CASE WHEN ?1 = 'approved' AND payload IS NOT NULL THEN 'due' ELSE '' END "
            "WHERE id = ?5 AND status = 'pending' AND (?2 = 'expiry' OR expires IS NULL OR expires > ?3)",
            (status, by, now, rule, number))
        reached("deciding")
        if done.rowcount == 1 and status != "approved":
            self._file.execute("UPDATE requests SET payload = NULL WHERE id = ?", (number,))
        return done.rowcount == 1

    def overdue(self, now: float) -> list[int]:
        return [row[0] for row in self._file.execute(
            "SELECT id FROM requests WHERE status = 'pending' AND expires <= ?", (now,))]

    def next_expiry(self) -> float | None:
        row = self._one("SELECT min(expires) FROM requests WHERE status = 'pending' AND expires IS NOT NULL")
        return None if row[0] is None else float(row[0])

    def staged(self, stage: str) -> list[ApprovalRequest]:
        return self._requests("WHERE stage = ? ORDER BY id", stage)

    def begin(self, number: int, temporary: str) -> bool:
        """
        Record that a caller begins to carry out a request, and may leave a file *temporary* behind; False if it isn't
        due.
        """
        return self._file.execute("UPDATE requests SET stage = 'applying', way = ? WHERE id = ? AND stage = 'due' "
                                       "AND status = 'approved'", (temporary, number)).rowcount == 1

    def temporary_name(self, number: int) -> str:
        row = self._one("SELECT way FROM requests WHERE id = ?", number)
        return "" if row is None else str(row[0])

    def finish(self, number: int, stage: str, note: str, *, stale: bool = False, now: float = 0.0) -> bool:
        """Record the result of an order that was begun; returns False if it wasn't begun."""
        done = self._file.execute("UPDATE requests SET stage = ?, note = ?, payload = NULL WHERE id = ? "
                                       "AND stage = 'applying'", (stage, note, number)).rowcount == 1
        if done and stale:
            self._file.execute("UPDATE requests SET status = 'denied', decided_by = 'stale', decided = ? WHERE id = ?",
                               (now, number))
        return done

    def take_place(self, number: int, made: int) -> None:
        """Note on request *number* that request *made* is carried out in its place."""
        self._file.execute("UPDATE requests SET note = ? WHERE id = ?", (place_note(made), number))

    def prune(self) -> None:
        """Delete old decided requests, as KEPT says."""
        self._file.execute(
            "DELETE FROM requests WHERE status != 'pending' AND stage NOT IN ('due', 'applying') AND id <= "
            "(SELECT coalesce(max(id), 0) FROM requests) - ?", (KEPT,))

    def add_rule(self, effect: Effect, text: str, project: str, now: float) -> bool:
        """Store a rule with its text in normal form; False if the same was there already."""
        return self._file.execute("INSERT OR IGNORE INTO rules VALUES (?, ?, ?, ?)",
                                       (effect, text, project, now)).rowcount == 1

    def remove_rule(self, effect: Effect, text: str, project: str | None) -> bool:
        """Remove a rule of *project* (None: of any); returns whether there was one."""
        which, values = _which(project=project)
        return self._file.execute(f"DELETE FROM rules WHERE effect = ? AND text = ?{which}",
                                      (effect, text, *values)).rowcount > 0

    def rules(self, effect: Effect) -> list[tuple[str, str]]:
        """The text and the project of each rule, the oldest first."""
        return list(self._file.execute("SELECT text, project FROM rules WHERE effect = ? ORDER BY rowid", (effect,)))

    def set_mode(self, category: str, mode: str) -> None:
        self._file.execute("INSERT INTO modes VALUES (?, ?) ON CONFLICT (category) DO UPDATE SET mode = excluded.mode",
                           (category, mode))

    def modes(self) -> dict[str, str]:
        return dict(self._file.execute("SELECT category, mode FROM modes"))


def _which(**columns: str | None) -> tuple[str, list[str]]:
    """The SQL condition on the columns whose value isn't None, and the values."""
    given = {name: value for name, value in columns.items() if value is not None}
    return "".join(f" AND {name} = ?" for name in given), list(given.values())


def _statements(script: str) -> Iterator[str]:
    """The statements of *script*; `executescript` would end the transaction."""
    held = ""
    for line in script.splitlines(keepends=True):
        held += line
        if sqlite3.complete_statement(held):
            yield held
            held = ""


def _request(row: Any) -> ApprovalRequest:
    number, category, action, subject, description, reason, data, *rest = row
    return ApprovalRequest(number, category, action, subject_of(subject), description, reason, json.loads(data), *rest)


# --- a file that is damaged -------------------------------------------------------------


def _locked(folder: str) -> int:
    try:
        return locked(os.path.join(folder, "lock"))
    except BlockingIOError:
        raise Busy(f"another program decides by {folder} now") from None


def _read_rule(effect: Any, text: Any, project: Any) -> tuple[Effect, str, str]:
    """The row of a rule that is valid, else BadRequest."""
    found: tuple[Effect, str, str] = "deny" if effect == "deny" else "allow", str(text), str(project)
    parse_rule(found[1], found[0], found[2])
    return found


def read_copy(folder: str) -> RuleCopy | None:
    """
    The copy of the rules and modes; None if there is none. Unsupported if it can't be read: it isn't known what was
    stored.
    """
    path = os.path.join(folder, COPY)
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        for category, mode in found["modes"].items():
            check_mode(category, mode)
        return RuleCopy(tuple(_read_rule(*row) for row in found["rules"]), found["modes"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, BadRequest):
        raise Unsupported("the copy of approvals' rules", have=f"{path}, which can't be read",
                          need="a file of leeward's", cure=f"if {FILE} beside it is whole, remove {path}") from None


def write_file(path: str, content: bytes, what: str, *, lasting: bool = True) -> None:
    """As `write_whole`; Busy, that *what* can't be written, where the disk is full."""
    try:
        write_whole(path, content, lasting=lasting)
    except OSError as error:
        raise Busy(f"{what} can't be written: {reason_of(error)}") from None


def _write_copy(folder: str, copied: RuleCopy) -> None:
    content = json.dumps({"rules": copied.rules, "modes": dict(copied.modes)}).encode()
    write_file(os.path.join(folder, COPY), content, "the copy of approvals' rules")


def recover(folder: str, *, without_rules: bool = False) -> tuple[str, RuleCopy] | None:
    """
    Make a new file of requests and rules in place of one that is damaged. The old one stays beside it.

    Returns the old file's path, and the rules of the new one; None if the file is whole. BadRequest if it isn't known
    which rules were stored, unless *without_rules*.
    """
    try:
        RequestStore(folder).close()
        return None
    except StoreDamaged:
        pass
    with OwnedFd(_locked(folder)):
        path = os.path.join(folder, FILE)
        copied, read = read_copy(folder), _readable(path)
        if copied is None and read is None and not without_rules:
            raise BadRequest(f"{path}: neither it nor a copy says which rules were stored; --without-rules makes a new"
                             " file with leeward's own, and a person decides what these would have decided")
        # Rules that allow, and modes, are taken from the copy alone: the file is damaged.
        denied = [rule for rule in read or () if rule[0] == "deny"]
        merged = RuleCopy(tuple(dict.fromkeys((*(copied.rules if copied else ()), *denied))),
                          copied.modes if copied else {})
        _write_copy(folder, merged)
        number = 1
        while os.path.lexists(f"{path}.damaged-{number}"):
            number += 1
        for end in ("", "-wal", "-shm"):
            if os.path.lexists(path + end):
                os.rename(path + end, f"{path}.damaged-{number}{end}")
    RequestStore(folder, restore=True).close()
    return f"{path}.damaged-{number}", merged


def _readable(path: str) -> list[tuple[Effect, str, str]] | None:
    """The valid rules of a damaged file; None if its table can't be read as a whole."""
    try:
        with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)) as file:
            return [_read_rule(*row) for row in file.execute("SELECT effect, text, project FROM rules")]
    except (sqlite3.Error, ValueError, TypeError, BadRequest):
        return None
