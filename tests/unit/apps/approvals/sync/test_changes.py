"""Changes of a copy become requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leeward.apps.approvals.carrying.apply import Project
from leeward.apps.approvals.carrying.orders import digest
from leeward.apps.approvals.queue.subjects import subject_title
from leeward.apps.approvals.sync.changes import _in_order, _request
from leeward.client.changes import FolderChange
from leeward.client.overlay import Overlay
from leeward.client.sandbox import Sandbox


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    for name, text in (("old", "the same\n"), ("empty", ""), ("changed", "1\n")):
        (tmp_path / name).write_text(text)
    made = Project(str(tmp_path))
    yield made
    made.close()


def asked(project: Project, *found: FolderChange) -> dict[str, tuple[str, Any]]:
    """The requests' actions, and what each was renamed from, by path; a file in the copy has its path's own text."""
    texts = {"new": b"the same\n", "also-empty": b"", "changed": b"2\n", "added": b"3\n"}
    overlay = SimpleNamespace(content=lambda path, most: texts[path], since=2**62)
    moved = dict[str, str]()
    news = [_request(cast("Overlay", overlay), cast("Sandbox", SimpleNamespace(id="box")), project, change, "", "", moved)
            for change in _in_order(list(found))]
    return {subject_title(new.subject): (new.action, new.metadata.get("renamed_from")) for new in news}


def test_a_request_says_what_its_change_does(project: Project) -> None:
    """A file with the content of one that is gone was renamed, unless it is empty."""
    def created(path: str, content: bytes) -> FolderChange:
        return FolderChange(path, "created", "file", 0o644, len(content), digest(content))

    assert {"old": ("delete", None), "empty": ("delete", None), "new": ("rename", "old"), "also-empty": ("add", None),
            "changed": ("change", None), "added": ("add", None)} == asked(
                project, created("new", b"the same\n"), created("also-empty", b""), created("added", b"3\n"),
                FolderChange("changed", "modified", "file", 0o644, 2, digest(b"2\n")),
                FolderChange("old", "deleted", "file"), FolderChange("empty", "deleted", "file"))
