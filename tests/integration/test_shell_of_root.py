"""The profile `shell` of root's daemon: root's own folders, wherever they are; and one that the kernel can't show so."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import leeward
from kit.live_daemon import LiveDaemon

pytestmark = [pytest.mark.needs("root"), pytest.mark.needs("kernel>=5.12")]

DAEMON = ("--pool-size", "1")


@pytest.fixture(params=["/root", "/tmp", "/var/tmp", "/opt"])
def project(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder with files, all of mode 0700 or 0600."""
    with tempfile.TemporaryDirectory(prefix="lw-root-", dir=request.param) as made:
        folder = Path(made)
        (folder / "deep").mkdir(mode=0o700)
        for name in ("file", "deep/file", ".env"):
            (folder / name).write_text(f"{name}\n")
            (folder / name).chmod(0o600)
        yield folder


def test_root_reads_its_own_files(daemon: LiveDaemon, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    with leeward.Sandbox(socket=daemon.socket, profile="shell") as box:
        got = box.shell("pwd; cat file deep/file; ls; cat .env; touch file deep/new; chmod 644 file")
        assert f"{project}\nfile\ndeep/file\ndeep\nfile\n" == got.stdout_text
        assert [".env", "file", "deep/new", "file"] == [
            name for line in got.stderr_text.splitlines() for name in (".env", "file", "deep/new") if f"{name}'" in
            line.replace(f"{name}:", f"{name}':")]
    assert 0o600 == (project / "file").stat().st_mode & 0o777


def test_a_file_system_below_that_takes_no_map_keeps_its_owners(daemon: LiveDaemon,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """An overlay, as the root of most containers; and the kernel's own file systems aren't shown."""
    with tempfile.TemporaryDirectory(prefix="lw-root-", dir="/root") as made:
        folder = Path(made)
        for name in ("lower", "upper", "work", "over", "proc"):
            (folder / name).mkdir(mode=0o700)
        for name, mode in (("private", 0o600), ("open", 0o644), ("mine/private", 0o600)):
            path = folder / "lower" / name
            path.parent.mkdir(exist_ok=True, mode=0o700)
            path.write_text(f"{name}\n")
            path.chmod(mode)
        (folder / "upper").chmod(0o755)  # whose mode the overlay has
        (folder / "mine").write_text("mine\n")
        (folder / "mine").chmod(0o600)
        options = ",".join(f"{name}dir={folder}/{name}" for name in ("lower", "upper", "work"))
        mounts = [["-t", "overlay", "-o", options, "overlay", folder / "over"], ["-t", "proc", "proc", folder / "proc"]]
        try:
            for mount in mounts:
                subprocess.run(["mount", *mount], check=True)
            monkeypatch.chdir(folder)
            with leeward.Sandbox(socket=daemon.socket, profile="shell") as box:
                got = box.shell("cat mine over/open; cat over/private; ls proc")
                assert ("mine\nopen\n", 1) == (got.stdout_text, got.stderr_text.count("Permission denied"))
            monkeypatch.chdir(folder / "over/mine")
            with (pytest.raises(leeward.RequestRejected, match="doesn't take id maps"),
                  leeward.Sandbox(socket=daemon.socket, profile="shell") as box):
                box.shell("true")
        finally:
            for mount in mounts:
                subprocess.run(["umount", "-l", mount[-1]], check=False)


def test_a_folder_of_secrets_is_refused_with_a_sentence(daemon: LiveDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="lw-root-", dir="/etc") as made:
        monkeypatch.chdir(made)
        with (pytest.raises(leeward.RequestRejected, match="root alone reads"),
              leeward.Sandbox(socket=daemon.socket, profile="shell") as box):
            box.shell("true")
    os.chdir("/")
