"""Which socket clients use, by whom it is named."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from kit.configured import written
from leeward.errors import BadRequest
from leeward.spec import paths
from leeward.spec.paths import OwnSocket, client_socket, configured, named_in

#: Files that the daemon takes, each with the path that clients must find in it.
PLAIN = (
    'socket = "/a/b.sock"', "socket='/a'", '"socket" = "/a"', "'socket'='/a'", '  socket\t=\t"/a" # a remark',
    'socket = ""',
    'pool_size = 2\r\nsocket = "/a"\r\n[limits]\r\ntime = 2', 'log_level = "info"\n[limits]\ntime = 2', "",
    '# socket = "/a"',
    'preload = [\n  "json",\n]\nsocket = "/a b=c"', 'security_log = "/socket"', 'socket = "/ä"',
    'metrics = "/socket = 1"',
)
#: What tomllib reads and clients refuse, or nobody reads.
REFUSED = ('socket = "/a\\u0062"', 'socket = """/a"""', "socket = 5", 'socket = "a"', 'socket = "/a', 'socket = "/a" x',
           "socket =", 'socket = "/a\tb"')


@pytest.mark.parametrize("text", PLAIN)
def test_the_key_is_read_as_by_a_toml_parser(text: str) -> None:
    """Without a parser, and in no table."""
    assert tomllib.loads(text).get("socket") == named_in(text.encode(), "x.toml")


@pytest.mark.parametrize("text", REFUSED)
def test_a_value_that_isnt_plain_is_refused(text: str) -> None:
    """Rather than another socket is used than the daemon's."""
    with pytest.raises(BadRequest, match=r"x\.toml: socket: "):
        named_in(text.encode(), "x.toml")


def test_a_key_of_a_table_is_another(tmp_path: Path) -> None:
    """The daemon refuses it there; clients don't take it for theirs."""
    assert named_in(b'[limits]\nsocket = "/a"', "x.toml") is None


def test_the_socket_is_named_by_the_first_source_that_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The argument, the variable, the user's file, the system's, none: in this order."""
    system = written(tmp_path / "etc.toml", 'socket = "/system"\n', 0o644)
    user = written(tmp_path / ".config/leeward/config.toml", 'socket = "/user"\n')
    monkeypatch.setattr(paths, "configured", lambda home, uid: configured(home, uid, str(system)))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LEEWARD_SOCKET", "/variable")
    assert ["/argument", "/variable"] == [client_socket("/argument"), client_socket(None)]
    monkeypatch.delenv("LEEWARD_SOCKET")
    assert "/user" == client_socket("")
    user.write_text('socket = ""\n')
    assert isinstance(client_socket(None), OwnSocket)
    user.unlink()
    assert "/system" == client_socket(None)
    assert not isinstance(client_socket(None), OwnSocket)
    system.unlink()
    assert isinstance(client_socket(None), OwnSocket)


def test_only_trusted_configuration_files_are_read(tmp_path: Path) -> None:
    """Not one that others can write, a link, or one in another user's home."""
    file = written(tmp_path / paths.USER_FILE, 'socket = "/user"\n', 0o666)
    with pytest.raises(BadRequest, match="lets others write it; chmod go-w /"):
        configured(str(tmp_path), os.geteuid(), "/none")
    file.chmod(0o600)
    assert "/user" == configured(str(tmp_path), os.geteuid(), "/none")
    assert "" == configured(str(tmp_path), os.geteuid() + 1, "/none")
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadRequest, match="symbolic link"):
        configured(str(tmp_path), os.geteuid(), "/none")
