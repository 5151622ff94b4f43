from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leeward.apps.approvals.carrying.apply import Project
from leeward.apps.approvals.carrying.asking import config_request, package_requests, parse_request
from leeward.apps.approvals.carrying.orders import unpacked
from leeward.apps.approvals.queue.approval_request import checked
from leeward.apps.approvals.queue.subjects import ProjectPath
from leeward.errors import BadRequest, EditError


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    (tmp_path / "file").write_text("one two\n")
    made = Project(str(tmp_path))
    yield made
    made.close()


def test_a_file_is_asked_for_with_its_project(project: Project) -> None:
    fields = {"category": "filesystem", "action": "edit", "path": "./x/../file", "old": "two", "new": "three"}
    new = parse_request(fields, project, "box")

    assert (ProjectPath("file"), "change") == (new.subject, new.action)
    assert new.payload is not None
    assert b"one three\n" == unpacked(new.payload).content
    assert project.path == new.metadata["project"]


def test_metadata_of_the_sandbox_is_kept_apart_from_the_services(project: Project) -> None:
    fields = {"category": "filesystem", "action": "write", "path": "new", "content": "x",
              "metadata": {"project": "/etc", "remarks": []}}

    new = parse_request(fields, project)

    assert "add" == new.action
    assert project.path == new.metadata["project"]
    assert {"project": "/etc", "remarks": []} == new.metadata["said"]


@pytest.mark.parametrize("fields", [
    {}, {"category": 7}, {"category": "packages"}, {"category": "network"},
    {"category": "network", "host": "a", "port": "1"},
    {"category": "network", "host": "a", "port": True}, {"category": "network", "host": "a", "more": 1},
    {"category": "filesystem", "action": "chmod", "path": "file"},
    {"category": "filesystem", "action": "write", "path": "file"},
    {"category": "filesystem", "action": "write", "path": "../x", "content": ""},
    {"category": "filesystem", "action": "write", "path": "\ud800", "content": ""},
    {"category": "filesystem", "action": "write", "path": "x", "content": "\ud800"},
    {"category": "filesystem", "action": "write", "path": "x", "content_base64": "?"},
    {"category": "filesystem", "action": "write", "path": "x", "content": "", "mode": 0o4755},
    {"category": "filesystem", "action": "write", "path": "x", "content": "", "mode": "7"},
    {"category": "filesystem", "action": "delete", "path": "nothing"},
    {"category": "filesystem", "action": "edit", "path": "file", "old": "no", "new": ""},
    {"category": "exec", "command": ["ls"], "cwd": 7}, {"category": "git", "branch": "-x"},
    {"category": "sandbox", "action": "two\nlines"}, {"category": "sandbox", "action": "x", "metadata": []},
    {"category": "sandbox", "action": "x", "reason": 7},
])
def test_a_malformed_request_is_refused(project: Project, fields: dict[str, Any]) -> None:
    with pytest.raises((BadRequest, EditError)):
        parse_request(fields, project)


def test_without_a_project_there_is_no_file() -> None:
    with pytest.raises(BadRequest, match="no project"):
        parse_request({"category": "filesystem", "action": "write", "path": "x", "content": ""}, None)


def test_every_package_is_a_request_with_a_command_of_its_own() -> None:
    found = package_requests("npm i -D a b@1.2.3 --silent", reason="why")

    assert [["npm", "install", "--save-dev", "a"], ["npm", "install", "--save-dev", "b@1.2.3"]] == [
        new.metadata["command"] for new in found]
    assert [["left out: --silent"]] * 2 == [new.metadata["remarks"] for new in found]
    assert {"why"} == {new.reason for new in found}


@pytest.mark.parametrize(("key", "value"), [
    ("mode.exec", "allow-all"), ("mode.packages", "allow-all"), ("mode.sandbox", "allow-all"), ("rules", "exec"),
    ("mode.network", "never"), ("mode.network", 7), ("exec.timeout", "long"), ("exec.timeout", True),
    ("exec.timeout", 1e9), ("exec.timeout", float("nan")), ("exec.profile", "a b"), ("exec.profile", None),
])
def test_a_setting_that_may_not_be_proposed_is_refused(key: str, value: Any) -> None:
    with pytest.raises(BadRequest):
        config_request(key, value)


def test_a_proposal_names_its_setting() -> None:
    new = checked(config_request("exec.timeout", 60))

    assert "set exec.timeout = 60.0" == getattr(new.subject, "text", "")
    assert {"key": "exec.timeout"} == json.loads(json.dumps(dict(new.metadata)))
