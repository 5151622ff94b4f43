"""What a person has answered in an agent's dialogues, merged by named keys."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any, cast

import pytest

from leeward.apps.agents.answers import AnswerStore, RunAnswers, answers_in, parsed, with_answers, write_to_host
from leeward.apps.agents.definition import AgentDefinition, AnswerFile
from leeward.client.sandbox import Sandbox
from leeward.errors import BadRequest, RequestRejected

KEYS = ("theme", "projects.$PROJECT.trusted", "keys.approved")
FILE = AnswerFile("~/.a.json", KEYS)


class Files:
    """The files of a sandbox, which stands for it here."""

    def __init__(self, there: dict[str, Any]) -> None:
        self.files, self._there = self, there

    def read(self, path: str, *, limit: int) -> bytes:
        if path not in self._there:
            raise OSError(errno.ENOENT, path)
        return json.dumps(self._there[path]).encode()[:limit]


def run(home: Path, *files: AnswerFile, inside: str = "/p.x") -> RunAnswers:
    return RunAnswers(AgentDefinition("a", answers=files or (FILE,)), "/p.x", inside, {"HOME": str(home)})


def ended(answers: RunAnswers, there: dict[str, Any]) -> None:
    answers.keep(cast("Sandbox", Files(there)))


def test_named_keys_alone_are_answers() -> None:
    table = {"theme": "dark", "other": True, "projects": {"/p.x": {"trusted": True, "x": 1}, "/q": {"trusted": True}},
             "keys": {"approved": ["a"]}}
    assert {"theme": "dark", "projects.$PROJECT.trusted": True, "keys.approved": ["a"]} == answers_in(table, KEYS, "/p.x")
    assert {"projects.$PROJECT.trusted": True, "theme": "dark", "keys.approved": ["a"]} == answers_in(table, KEYS, "/q")


@pytest.mark.parametrize("value", [None, {}, 1.5, "a\x1b", "a" * 201, "\u202e", ["a", 1], [["a"]], ["a"] * 101, 1 << 60])
def test_what_an_agent_may_not_hand_on(value: Any) -> None:
    assert {} == answers_in({"theme": value}, KEYS, "/p.x")


@pytest.mark.parametrize("content", [b"", b"[]", b"no", b"[" * 100_000, b'"' + b"a" * (3 << 20) + b'"', b"9" * 5000, b"\xff"])
def test_what_is_no_table_has_no_answers(content: bytes) -> None:
    assert {} == parsed(content)


def test_answers_are_merged_and_lists_appended() -> None:
    table = {"theme": "light", "more": 1, "keys": {"approved": ["a", "b"]}}
    assert {"theme": "dark", "more": 1, "keys": {"approved": ["a", "b", "c"]}, "projects": {"/q": {"trusted": True}}} == (
        with_answers(table, {"theme": "dark", "keys.approved": ["b", "c"], "projects.$PROJECT.trusted": True}, "/q"))
    assert {"projects": "no table"} == with_answers({"projects": "no table"}, {"projects.$PROJECT.trusted": True}, "/q")


def test_a_copy_is_the_hosts_file_with_what_was_answered_before(tmp_path: Path) -> None:
    """The first one as it is, to the byte; nothing that the host's file has is kept."""
    host, target = b'{ "theme": "dark", "secret": 1 }', str(tmp_path / ".a.json")
    first = run(tmp_path)
    assert {} == first.copies({target: host}, lambda _: None)
    ended(first, {target: {"theme": "dark", "secret": 2, "projects": {"/p.x": {"trusted": True}}}})
    second = run(tmp_path)
    made = json.loads(second.copies({target: host}, lambda _: None)[target])
    assert {"theme": "dark", "secret": 1, "projects": {"/p.x": {"trusted": True}}} == made
    ended(second, {target: made})
    assert {FILE.file: {"projects.$PROJECT.trusted": True}} == stored(tmp_path).read((FILE,))
    ended(run(tmp_path), {})  # the agent hasn't written it
    assert {FILE.file: {"projects.$PROJECT.trusted": True}} == stored(tmp_path).read((FILE,))


def stored(home: Path) -> AnswerStore:
    return AnswerStore(str(home / ".local/state/leeward/agents"), "a", "/p.x")


def test_a_file_that_is_no_copy_has_the_answers_alone(tmp_path: Path) -> None:
    """Of the host's file, too; the project's path is that in the sandbox."""
    file = AnswerFile("~/.state/trusted.json", ("$PROJECT",), "~/.trusted.json")
    inside = str(tmp_path / ".trusted.json")
    first = run(tmp_path, file, inside="/in")
    made = first.copies({}, lambda path: b'{"/p.x": "YES", "/q": "YES"}' if path.endswith("trusted.json") else None)
    assert {inside: {"/in": "YES"}} == {path: json.loads(content) for path, content in made.items()}
    ended(first, {inside: {"/in": "NO", "/q": "NO"}})
    assert {file.file: {"$PROJECT": "NO"}} == stored(tmp_path).read((file,))
    assert {inside: {"/in": "NO"}} == {path: json.loads(content) for path, content in run(
        tmp_path, file, inside="/in").copies({}, lambda _: None).items()}


def test_keys_that_a_definition_names_no_more_and_a_broken_store_are_left_out(tmp_path: Path) -> None:
    store = stored(tmp_path)
    store.write({FILE.file: {"theme": "dark", "old": True}})
    assert {FILE.file: {"theme": "dark"}} == store.read((FILE,))
    [file] = (tmp_path / ".local/state/leeward/agents/answers").iterdir()
    file.write_text("no")
    assert {} == store.read((FILE,))
    store.write({})
    assert not file.exists()


def test_a_file_of_the_host_gets_the_answers_and_keeps_the_rest(tmp_path: Path) -> None:
    file, written = tmp_path / "dotfiles/a.json", tmp_path / "state"
    file.parent.mkdir()
    written.mkdir()
    file.write_text('{"more": 1}')
    file.chmod(0o640)
    link = tmp_path / ".a.json"
    link.symlink_to(file)
    write_to_host(str(link), {"theme": "dark", "projects.$PROJECT.trusted": True}, "/p.x", lambda _: [str(written)])
    assert {"more": 1, "theme": "dark", "projects": {"/p.x": {"trusted": True}}} == json.loads(file.read_text())
    assert (True, 0o640) == (link.is_symlink(), file.stat().st_mode & 0o777)
    write_to_host(str(tmp_path / "new.json"), {"theme": "dark"}, "/p.x", lambda _: [])
    assert {"theme": "dark"} == json.loads((tmp_path / "new.json").read_text())


@pytest.mark.parametrize("content", [b"no", b"[1]", b'{"a": "' + b"a" * (2 << 20) + b'"}'])
def test_a_file_of_the_host_that_is_no_table_stays(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(content)
    with pytest.raises(BadRequest, match="no table"):
        write_to_host(str(file), {"theme": "dark"}, "/p.x", lambda _: [])
    assert content == file.read_bytes()
    assert [file] == [*tmp_path.iterdir()]


def test_a_link_of_an_agents_is_not_followed(tmp_path: Path) -> None:
    state, other = tmp_path / "state", tmp_path / "other.json"
    state.mkdir()
    other.write_text("{}")
    (state / "a.json").symlink_to(other)
    with pytest.raises(RequestRejected, match="an agent can have made"):
        write_to_host(str(state / "a.json"), {"theme": "dark"}, "/p.x", lambda _: [str(state)])
    assert "{}" == other.read_text()
