from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from leeward.apps.approvals.carrying.settings import FILE, KEYS, ServiceSettings
from leeward.apps.approvals.queue.queue import ApprovalQueue
from leeward.errors import BadRequest


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[ApprovalQueue]:
    made = ApprovalQueue(str(tmp_path))
    yield made
    made.close()


def test_settings_survive_a_restart(queue: ApprovalQueue, tmp_path: Path) -> None:
    settings = ServiceSettings(str(tmp_path), queue)
    assert set(KEYS) == set(settings.all())
    settings.set("exec.timeout", 60)
    settings.set("mode.network", "deny-all")
    again = ServiceSettings(str(tmp_path), queue).all()

    assert (60.0, "deny-all", "") == (again["exec.timeout"], again["mode.network"], again["exec.profile"])
    assert "deny-all" == queue.rules().mode("network")
    assert 0o600 == (tmp_path / FILE).stat().st_mode & 0o777
    assert [FILE] == [path.name for path in tmp_path.iterdir() if path.name.startswith("settings")]


def test_an_unknown_key_changes_no_setting(queue: ApprovalQueue, tmp_path: Path) -> None:
    settings = ServiceSettings(str(tmp_path), queue)
    before = settings.all()
    for key, value in (("mode.exec", "allow-all"), ("exec.timeout", -1), ("x", 1)):
        with pytest.raises(BadRequest):
            settings.set(key, value)

    assert before == settings.all()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"exec.timeout": "x"}'])
def test_a_malformed_file_of_settings_is_reported(queue: ApprovalQueue, tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)

    with pytest.raises(BadRequest, match=FILE):
        ServiceSettings(str(tmp_path), queue)
