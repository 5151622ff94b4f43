"""What a client tells of itself for the profile `shell`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from leeward.client.host_view import add_host_view
from leeward.client.mounts import Mount
from leeward.errors import RequestRejected


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        monkeypatch.delenv(name)
    given = {"PATH": "/bin", "LC_ALL": "C", "HOME": "/usr/share/..", "TOKEN": "secret", "LANG": "\udcff"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)


def test_a_client_tells_its_folders_and_some_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable that isn't text or isn't in the list; those that are given come last."""
    monkeypatch.chdir("/usr")
    fields, mounts = add_host_view({"profile": "shell", "env": {"PATH": "/own"}}, ())

    assert {"profile": "shell", "cwd": "/usr", "home": "/usr",
            "env": {"PATH": "/own", "LC_ALL": "C", "HOME": "/usr/share/.."}} == fields
    assert () == mounts


def test_a_current_folder_below_tmp_is_mounted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    below = str(tmp_path.resolve())
    expected = (Mount(below, below),) if below.startswith(("/tmp/", "/var/", "/run/")) else ()

    assert expected == add_host_view({"profile": "shell"}, ())[1]


def test_other_profiles_get_no_host_view() -> None:
    mount: tuple[Any, ...] = (Mount("/srv", "/data"),)

    assert ({"profile": "python"}, mount) == add_host_view({"profile": "python"}, mount)


def test_an_unsuitable_host_view_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(RequestRejected, match="no workdir, no mounts"):
        add_host_view({"profile": "shell"}, (Mount("/srv", "/data"),))
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(RequestRejected, match="the current folder can't be named"):
        add_host_view({"profile": "shell"}, ())
    odd = tmp_path / "odd\udcff"
    odd.mkdir()
    monkeypatch.chdir(odd)
    with pytest.raises(RequestRejected, match="the current folder can't be named"):
        add_host_view({"profile": "shell"}, ())
