"""
What a person has answered in an agent's own dialogues, kept for a project: whether its folder is trusted, the theme.

An agent gets a copy of its file with these answers, and what it changes is lost with the sandbox. At the end the keys
that the definition names are read from the copy, and the next start merges them into the next copy. Nothing of them gets
into the file on the host but by `leeward agent keep`, which shows them first.

Trust:     none in what comes from the sandbox, whose agent may have written anything: named keys alone are taken, their
           values are true, false, numbers, and short texts of visible characters, or lists of such texts.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from leeward.apps.agents.definition import AgentDefinition, AnswerFile
from leeward.apps.agents.errors import printable
from leeward.apps.agents.settings_paths import state_home
from leeward.apps.agents.state_files import MAX_STATE, own_folder, read_state, write_at_once
from leeward.apps.agents.written import home_path, open_real, real_beside
from leeward.client.sandbox import Sandbox
from leeward.errors import BadRequest, LeewardError, quoted, reason_of

#: Bytes of an agent's file that are parsed, characters of a text, and texts of a list, at most.
MOST_PARSED, _MOST_TEXT, _MOST_LIST = 2 << 20, 200, 100
#: The part of a key that stands for the project's path.
PROJECT = "$PROJECT"
#: Files of answers that are kept, at most: those that were written last.
_MOST_KEPT = 500

#: The answers of one file, by key.
Answers = Mapping[str, Any]


def parsed(content: bytes) -> dict[str, Any]:
    """The table in JSON; {} of anything else."""
    try:
        found = json.loads(content) if len(content) <= MOST_PARSED else None
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def answers_in(table: Mapping[str, Any], keys: Sequence[str], project: str) -> dict[str, Any]:
    """The values of *keys* in *table* that are answers; *project* is the project's path there."""
    found = dict[str, Any]()
    for key in keys:
        value: Any = table
        for part in _parts(key, project):
            value = value.get(part) if isinstance(value, dict) else None
        if _is_answer(value):
            found[key] = value
    return found


def with_answers(table: dict[str, Any], answers: Answers, project: str) -> dict[str, Any]:
    """*table* with *answers* set in it, lists appended; one whose place has another kind of value is left out."""
    for key, value in answers.items():
        *above, last = _parts(key, project)
        place: Any = table
        for part in above:
            place = place.setdefault(part, {}) if isinstance(place, dict) else None
        if isinstance(place, dict):
            there = place.get(last)
            if isinstance(value, list) and isinstance(there, list) and all(isinstance(each, str) for each in there):
                value = [*dict.fromkeys((*there, *value))]
            place[last] = value
    return table


def new_answers(before: Answers, after: Answers) -> dict[str, Any]:
    """Those of *after* that *before*, of the host's file, hasn't."""
    return {key: value for key, value in after.items() if before.get(key) != value}


def _parts(key: str, project: str) -> list[str]:
    return [project if part == PROJECT else part for part in key.split(".")]


def _is_answer(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) <= _MOST_LIST and all(isinstance(each, str) and _is_answer(each) for each in value)
    if isinstance(value, str):
        return len(value) <= _MOST_TEXT and printable(value) == value
    return isinstance(value, bool) or (type(value) is int and abs(value) < 1 << 53)


class AnswerStore:
    """The answers of one agent on one project, by file, in the user's state."""

    def __init__(self, state_home: str, agent: str, project: str) -> None:
        self._folder = os.path.join(state_home, "answers")
        self._name = hashlib.sha256(os.fsencode(f"{agent}\0{project}")).hexdigest() + ".json"

    def read(self, files: Sequence[AnswerFile]) -> dict[str, dict[str, Any]]:
        """The answers for *files*, by `AnswerFile.file`, as far as their keys are still named."""
        content = read_state(self._folder, self._name)
        table = parsed(content) if content else {}
        found = {each.file: {key: value for key, value in known.items() if key in each.keys and _is_answer(value)}
                 for each in files if isinstance(known := table.get(each.file), dict)}
        return {file: each for file, each in found.items() if each}

    def write(self, answers: Mapping[str, Answers]) -> None:
        """Replace all; none are no file."""
        content = json.dumps({file: dict(each) for file, each in answers.items()}).encode()
        if not answers or len(content) > MAX_STATE:
            self.forget()
            return
        own_folder(self._folder)
        write_at_once(self._folder, self._name, content, lasting=False)
        times = {entry.path: entry.stat(follow_symlinks=False).st_mtime_ns for entry in os.scandir(self._folder)}
        for path in sorted(times, key=lambda path: -times[path])[_MOST_KEPT:]:
            os.unlink(path)

    def forget(self) -> None:
        try:
            os.unlink(os.path.join(self._folder, self._name))
        except FileNotFoundError:
            pass


def write_to_host(file: str, answers: Answers, project: str, written: Callable[[str], Iterable[str]]) -> None:
    """
    Set *answers* in *file* of the host, which is replaced as a whole. BadRequest if it isn't JSON with a table, or too
    large; RequestRejected if a link that an agent can have made leads there (*written*, as for `open_beside`).
    """
    real = real_beside(file, written) or file
    folder = open_real(os.path.dirname(real))
    try:
        name, temporary, mode, content = os.path.basename(real), f".leeward.{os.urandom(8).hex()}", 0o600, b""
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            with open(fd, "rb") as there:
                mode = stat.S_IMODE(os.fstat(fd).st_mode)
                content = there.read(MOST_PARSED + 1)
        table = parsed(content)
        if content.strip() and not table:
            raise BadRequest(f"{quoted(file)} has no table in JSON, or is too large")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=folder)
        with open(fd, "wb") as made:
            made.write(json.dumps(with_answers(table, answers, project), indent=2).encode() + b"\n")
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise BadRequest(f"{quoted(file)}: {reason_of(error)}") from None
    finally:
        os.close(folder)


class RunAnswers:
    """The answers of one run of an agent on *project*, whose path in the sandbox is *inside*."""

    def __init__(self, definition: AgentDefinition, project: str, inside: str, environ: Mapping[str, str]) -> None:
        self._files, self._inside = definition.answers, inside
        self._project, self._home = project, os.path.realpath(environ.get("HOME") or "/")
        self._store = AnswerStore(state_home(environ), definition.name, project)
        self._known = self._store.read(self._files)
        self._host = dict[str, bytes]()  # the content of the host's files

    def copies(self, staged: Mapping[str, bytes], content_of: Callable[[str], bytes | None]) -> dict[str, bytes]:
        """
        The files for the sandbox, by their paths there, that aren't as in *staged*: the file of *staged*, or else the
        answers alone of the host's file, with the answers that are kept.
        """
        made = dict[str, bytes]()
        for each in self._files:
            target, known = self._target(each), self._known.get(each.file, {})
            whole = staged.get(target)
            self._host[each.file] = whole if whole is not None else content_of(home_path(each.file, self._home)) or b""
            if whole is not None and not known and self._inside == self._project:
                continue  # to parse it takes a while
            table = parsed(self._host[each.file])
            told = {**answers_in(table, each.keys, self._project), **known}
            if told and (table or not whole):
                made[target] = json.dumps(with_answers(table if whole else {}, told, self._inside)).encode()
        return made

    def keep(self, box: Sandbox) -> None:
        """Note what was answered in the sandbox and isn't in the host's files. What can't be read stays as it was."""
        found = {file: dict(each) for file, each in self._known.items()}
        for each in self._files:
            with contextlib.suppress(LeewardError, OSError):
                table = parsed(box.files.read(self._target(each), limit=MOST_PARSED))
                before = answers_in(parsed(self._host.get(each.file, b"")), each.keys, self._project)
                if table:
                    found[each.file] = new_answers(before, answers_in(table, each.keys, self._inside))
        found = {file: each for file, each in found.items() if each}
        if found != self._known:
            with contextlib.suppress(LeewardError, OSError):
                self._store.write(found)

    def _target(self, each: AnswerFile) -> str:
        return home_path(each.at or each.file, self._home)
