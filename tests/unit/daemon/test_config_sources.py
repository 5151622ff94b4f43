"""Where the configuration comes from: every source in its turn, and what must be refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kit.configured import loaded, written
from leeward.daemon.config_sources import load
from leeward.errors import BadRequest
from leeward.spec import writers
from leeward.spec.limits import CEILINGS, Limits


def test_the_defaults_are_the_documented_ones(home: Path) -> None:
    """Without any file."""
    config = loaded(home, XDG_RUNTIME_DIR="/run/user/5")

    assert (4, 64, 0.1, 30.0, 100) == (
        config.pool_size, config.queue_size, config.queue_delay, config.queue_timeout, config.recycle_after)
    assert Limits() == config.limits
    assert CEILINGS == config.ceilings
    expected = "/run/leeward/leeward.sock" if os.geteuid() == 0 else "/run/user/5/leeward/leeward.sock"
    assert expected == config.socket


def test_later_sources_win_key_by_key(home: Path, tmp_path: Path) -> None:
    """System, user, --config, environment, command line."""
    text = "pool_size = 2\nspares = 2\nqueue_size = 2\n[limits]\ncpu = 50\ntime = 1\n"
    system = written(tmp_path / "etc.toml", text, 0o644)
    written(home / ".config/leeward/config.toml", "spares = 3\nqueue_size = 3\n[limits]\ntime = 2\n")
    explicit = written(tmp_path / "x.toml", 'queue_size = 4\nsocket = "/a"\n')
    config = loaded(home, explicit, {"log_level": "debug"}, system=system, LEEWARD_SOCKET="/b")

    assert (2, 3, 4) == (config.pool_size, config.spares, config.queue_size)
    assert (50, 2.0) == (config.limits.cpu, config.limits.time)
    assert ("/b", "debug") == (config.socket, config.log_level)
    assert "/c" == loaded(home, explicit, {"socket": "/c"}, LEEWARD_SOCKET="/b").socket


def test_sizes_may_have_units(home: Path, tmp_path: Path) -> None:
    """As on the command line."""
    config = loaded(home, written(tmp_path / "x.toml", '[limits]\nmemory = "512MiB"\nfiles = 1048576\noutput = "1M"\n'))

    assert (512 << 20, 1 << 20, 1 << 20) == (config.limits.memory, config.limits.files, config.limits.output)


REFUSED = {
    "unknown key": ("pool_sise = 4", "pool_sise"),
    "unknown limit": ("[limits]\nmemmory = 4", "limits.memmory"),
    "a ceiling that isn't one": ("[ceilings]\ncpu = 100", "ceilings.cpu"),
    "unknown table": ("[limit]\ntime = 1", "limit"),
    "a table as value": ("limits = 4", "limits"),
    "a value as table": ("[socket]\npath = 1", "socket"),
    "text for a number": ('pool_size = "4"', "pool_size"),
    "a fraction of a worker": ("pool_size = 1.5", "pool_size"),
    "true for a number": ("pool_size = true", "pool_size"),
    "no workers": ("pool_size = 0", "pool_size"),
    "a negative size": ("[limits]\nmemory = -1", "limits.memory"),
    "too little memory": ('[limits]\nmemory = "1M"', "limits.memory"),
    "a size in apples": ('[limits]\nmemory = "4 apples"', "limits.memory"),
    "time that is none": ("[limits]\ntime = nan", "limits.time"),
    "endless time": ("queue_timeout = inf", "queue_timeout"),
    "a relative socket": ('socket = "leeward.sock"', "socket"),
    "a socket with NUL": ('socket = "/a\\u0000b"', "socket"),
    "a layer that never degrades": ('allow_degraded = ["seccomp"]', "allow_degraded"),
    "a layer that degrades by itself": ('allow_degraded = ["landlock", "cgroup"]', "cgroup would mean a start without"),
    "a layer twice": ('allow_degraded = ["landlock", "landlock"]', "allow_degraded"),
    "a layer as text": ('allow_degraded = "landlock"', "allow_degraded"),
    "a module that is none": ('preload = ["os; import evil"]', "preload"),
    "a number for a switch": ("log_json = 1", "log_json"),
    "a level that is none": ('log_level = "loud"', "log_level"),
    "the same key twice": ("pool_size = 4\npool_size = 5", "pool_size"),
    "the same table twice": ("[limits]\n[limits]", "[limits]"),
    "no TOML": ("pool_size: 4", "pool_size"),
    "metrics for everybody": ('metrics = "0.0.0.0:9464"', "metrics"),
    "metrics on a number": ("metrics = 9464", "metrics"),
    "a security log somewhere": ('security_log = "security.log"', "security_log"),
    "a group that isn't there": ('group = "no such group"', "group"),
    "a quota of apples": ("[quota]\napples = 3", "quota.apples"),
    "a negative rate": ("[quota]\nrate = -1", "quota.rate"),
    "a user who isn't there": ('[users."no such user"]\njobs = 1', "no such user"),
    "a user's quota of apples": ("[users.1000]\napples = 1", "users.1000.apples"),
    "a user who is a number": ("[users]\n1000 = 3", "users.1000"),
    "users that are none": ("users = 3", "users"),
    "a quota that no job fits in": ('[quota]\nmemory = "128M"', "quota.memory"),
    "a user's quota that no job fits in": ('[users.1000]\nmemory = "128M"', "users.1000.memory"),
    "a policy that is none": ("[egress]\nbuild = 3", "egress.build"),
    "policies that are none": ("egress = 3", "egress"),
    "a policy with another key": ("[egress.build]\nalow = []", "egress.build.alow"),
    "a policy with a broken rule": ('[egress.build]\nallow = ["a", "b/c"]', "egress.build.allow[1]"),
    "a policy whose name is none": ('[egress."a b"]\nallow = []', "egress.a b"),
    "a policy with secrets": ('[egress.build.secrets]\nKEY = { hosts = ["a"] }', "egress.build.secrets"),
    "a policy with too many ports": ("[egress.build]\nallow = ['a']\nports = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 53]",
                                     "egress.build: its rules are for 10 ports, 9 are"),
    "a policy too long for its broker": (
        f"[egress.build]\ndeny = {[f'n{number}.' + 3 * (63 * 'a' + '.') + 'org' for number in range(1000)]}",
        "196608 are the most"),
    "a policy within another": ("[egress.build]\nwithin = {}", "egress.build.within"),
    "a default above its ceiling": ('[limits]\nmemory = "8G"', "limits.memory"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_c149_malformed_configuration_is_refused(name: str, home: Path, tmp_path: Path) -> None:
    """With its place: file and key."""
    text, place = REFUSED[name]
    path = written(tmp_path / "x.toml", text)
    with pytest.raises(BadRequest) as refusal:
        loaded(home, path)

    assert place in str(refusal.value)
    if "is below limits" not in str(refusal.value) and name != "a default above its ceiling":
        assert str(path) in str(refusal.value)


@pytest.mark.parametrize(("text", "why"), [
    (f"preload = {'[' * 5000}{']' * 5000}\n", "within each other"), ("[a" + ".a" * 5000 + "]\n", "a"),
    (f"x = {'{a=' * 5000}1{'}' * 5000}\n", "within each other"), (f"pool_size = {'9' * 5000}\n", "too many digits")])
def test_a_file_that_would_exhaust_a_parser_is_refused(text: str, why: str, home: Path, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=why) as refused:
        loaded(home, written(tmp_path / "x.toml", text))
    assert str(tmp_path / "x.toml") in str(refused.value)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666, 0o777])
def test_c149_a_file_that_others_can_write_is_refused(mode: int, home: Path, tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever writes it decides what jobs may do."""
    path = written(tmp_path / "x y.toml", "pool_size = 3", mode)
    with monkeypatch.context() as patch:
        patch.setattr(writers, "_has_owner_alone", lambda group, owner: False)
        with pytest.raises(BadRequest, match=f"lets others write it; chmod go-w '{path}'"):
            loaded(home, path)
    path.chmod(0o644)
    assert 3 == loaded(home, path).pool_size  # control


def test_a_file_that_its_owners_own_group_can_write_is_taken(home: Path, tmp_path: Path,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    """As a umask of 002 makes them."""
    monkeypatch.setattr(writers, "_has_owner_alone", lambda group, owner: True)
    assert 3 == loaded(home, written(tmp_path / "x.toml", "pool_size = 3", 0o664)).pool_size


def test_c149_a_strangers_file_is_refused(home: Path, tmp_path: Path) -> None:
    """Ours and root's are taken, nobody else's."""
    path = written(tmp_path / "x.toml", "pool_size = 3")
    if os.geteuid() == 0:
        os.chown(path, 4711, 0)
        stranger = 0
    else:
        stranger = os.geteuid() + 1  # the file is ours, and we pretend to be somebody else
    with pytest.raises(BadRequest, match="belongs to user"):
        load(str(path), environ={"HOME": "/none"}, uid=stranger, system_file="/none")


@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "huge", "binary", "missing"])
def test_c149_only_a_plain_file_is_read(kind: str, home: Path, tmp_path: Path) -> None:
    """And nothing blocks on what isn't one."""
    path = tmp_path / "x.toml"
    if kind == "link":
        path.symlink_to(written(tmp_path / "real.toml", "pool_size = 3"))
    elif kind == "fifo":
        os.mkfifo(path, 0o600)
    elif kind == "folder":
        path.mkdir()
    elif kind == "huge":
        written(path, "#" * (2 << 20))
    elif kind == "binary":
        path.write_bytes(b"\xff\xfe")
        path.chmod(0o600)
    with pytest.raises(BadRequest, match=str(path)):
        loaded(home, path)


def test_the_home_of_another_user_is_not_read(tmp_path: Path) -> None:
    """sudo and setpriv may leave HOME as it was."""
    written(tmp_path / ".config/leeward/config.toml", "pool_size = 3")
    mine = {"HOME": str(tmp_path)}

    assert 3 == load(environ=mine, uid=os.geteuid(), system_file="/none").pool_size  # control
    assert 4 == load(environ=mine, uid=os.geteuid() + 1, system_file="/none").pool_size


@pytest.mark.parametrize(("text", "says"), [
    ('[profiles.a]\nvariables = { KEY = "s3cret", N = 5 }', "variables: must be a table of text"),
    ('[profiles.a.variables]\nA = "1"\nA = "s3cret"', "(at end of document): 'A'"),
    ('[egress.a]\nsecrets = { KEY = { from = "s3cret", hosts = ["a:1"] } }', "secrets.KEY.from: ")])
def test_an_error_has_no_value_of_a_secret(home: Path, text: str, says: str) -> None:
    """It is in the daemon's log, too."""
    written(home / ".config/leeward/config.toml", text)
    with pytest.raises(BadRequest) as refused:
        loaded(home)
    assert says in str(refused.value)
    assert "s3cret" not in str(refused.value)
