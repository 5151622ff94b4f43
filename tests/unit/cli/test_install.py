"""The service of systemd: what its units say, and that all of it goes again."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from leeward.client import autostart
from leeward.errors import BadRequest, Unsupported
from leeward_cli import install as module
from leeward_cli.full import app
from leeward_cli.install import Place, check_reachable, install, uninstall, unreachable
from leeward_cli.units import MARK, SERVICE, SOCKET, Installation, quoted, units

PROGRAM = ["/usr/bin/python3", "-P", "-m", "leeward_cli", "daemon", "run"]


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith(("#", "["))]


@pytest.mark.parametrize(("word", "text"), [
    ("/usr/bin/python3", "/usr/bin/python3"), ("/opt/a b/python", '"/opt/a b/python"'), ("50%", '"50%%"'),
    ("$HOME", '"$$HOME"'), ('a"b\\c', '"a\\"b\\\\c"'), ("a;b", '"a;b"'), ("", '""'),
])
def test_words_of_a_command(word: str, text: str) -> None:
    """As systemd.syntax(7) and systemd.service(5) have it."""
    assert text == quoted(word)


@pytest.mark.parametrize("user", [False, True])
def test_a_service_that_systemd_can_watch(user: bool) -> None:
    """Told when it is ready, alive and over; with its groups to itself; on a socket that stays."""
    made = units(Installation(user, PROGRAM))
    service, socket = lines(made[SERVICE]), lines(made[SOCKET])

    assert {"Type=notify", "WatchdogSec=30", "Delegate=yes", "Requires=leeward.socket", "KillMode=mixed",
            "NoNewPrivileges=yes", "ExecStart=/usr/bin/python3 -P -m leeward_cli daemon run"} <= set(service)
    assert ("User=leeward" in service) == ("DynamicUser=yes" in service) == (not user)
    assert "SocketMode=0600" in socket
    assert ("ListenStream=%t/leeward/leeward.sock" if user else "ListenStream=/run/leeward/leeward.sock") in socket
    assert all(text.startswith(MARK) for text in made.values())


def test_a_group_owns_the_socket_and_the_daemon_is_told() -> None:
    """The socket is its, and the daemon is told."""
    made = units(Installation(False, PROGRAM, "sand box"))

    assert {"SocketGroup=sand box", "SocketMode=0660"} <= set(lines(made[SOCKET]))
    assert 'ExecStart=/usr/bin/python3 -P -m leeward_cli daemon run --group "sand box"' in made[SERVICE]


def test_systemd_options_that_prevent_sandboxes_are_off() -> None:
    """With each of these the daemon would not start, or a layer would be missing; units.py says why."""
    service = units(Installation(False, PROGRAM))[SERVICE]

    assert not re.search(r"^(RestrictNamespaces|Protect(Kernel|Proc|Control|Hostname)|PrivateUsers|SystemCallFilter)",
                         service, re.MULTILINE)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze isn't installed")
@pytest.mark.parametrize("user", [False, True])
def test_systemd_understands_every_line(user: bool, tmp_path: Path) -> None:
    """Without a word of complaint; and with one for what it doesn't know."""
    made = units(Installation(user, PROGRAM))
    for name, text in made.items():
        (tmp_path / name).write_text(text)

    def verified() -> str:
        done = subprocess.run(["systemd-analyze", *(["--user"] if user else []), "--recursive-errors=no", "verify",
                               *(str(tmp_path / name) for name in made)], capture_output=True, text=True, check=False,
                              timeout=60, env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)})
        return done.stdout + done.stderr
    assert "" == verified()
    (tmp_path / SERVICE).write_text(made[SERVICE].replace("Delegate=", "Delegato="))
    assert "Delegato" in verified()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that stands for /, of which a test may find anything but something left behind."""
    monkeypatch.setenv("HOME", "/home/me")
    # Whether others reach the interpreter of these tests is another matter, and tested below.
    monkeypatch.setattr(module, "check_reachable", lambda: None)
    folder = tmp_path / "root"
    folder.mkdir()
    yield folder
    assert [] == list(folder.rglob("*leeward*"))


@pytest.mark.parametrize("user", [False, True])
def test_install_and_uninstall(user: bool, root: Path) -> None:
    """Twice in a row is as good as once, and nothing of it stays."""
    place = Place(user=user, root=str(root))
    other = place.folder / "other.service"
    if not user:
        place.folder.mkdir(parents=True)
        other.write_text("[Service]\n")
    written = [install(place) for _ in range(2)]
    folder = root / ("home/me/.config/systemd/user" if user else "etc/systemd/system")
    links = {str(path.relative_to(folder)): path.resolve() for path in folder.rglob("*.wants/*")}

    assert [folder / SERVICE, folder / SOCKET] == written[0] == written[1]
    target = "default.target" if user else "multi-user.target"
    assert {f"{target}.wants/{SERVICE}", f"sockets.target.wants/{SOCKET}"} == set(links)
    assert set(links.values()) == set(written[0])
    assert [0o644] * 2 == [path.stat().st_mode & 0o7777 for path in written[0]]
    assert written[0] == uninstall(place)
    assert [] == uninstall(place)
    left = [path for path in root.rglob("*") if not path.is_dir()]
    assert left == ([] if user else [other])
    assert not (root / "home/me/.config").exists()


def test_by_the_command_line(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The paths are printed; a group is for the system's."""
    assert 0 == app(["daemon", "install", "--system", "--group", "users", f"--root={root}"])
    service = root / "etc/systemd/system" / SERVICE
    assert f"{service}\n{service.with_name(SOCKET)}\n" == capsys.readouterr().out
    assert "--group users" in service.read_text()
    assert 2 == app(["daemon", "install", "--user", "--group", "users", f"--root={root}"])
    assert 0 == app(["daemon", "uninstall", "--system", f"--root={root}"])
    assert f"{service}\n{service.with_name(SOCKET)}\n" == capsys.readouterr().out


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The place of a user's own units, below the test's folder, with a service manager that does all it is told."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LEEWARD_SOCKET", raising=False)
    monkeypatch.delenv("LEEWARD_AUTOSTART", raising=False)
    monkeypatch.setattr(Place, "manager", lambda place, *words, check=True: None)
    for name in ("_SYSTEM_UNITS", "_USER_UNITS"):
        monkeypatch.setattr(autostart, name, (str(tmp_path / "others"),))
    (tmp_path / "others").mkdir()
    return Place(user=True)


@pytest.mark.parametrize(("variable", "units", "said"), [
    ("1", [], "clients of yours start a daemon by themselves"), ("0", [], ""),
    ("1", [SOCKET], f"others/{SOCKET}, which `leeward daemon install` didn't write, has the socket now"),
    ("0", [SERVICE], f"others/{SERVICE}, which"),
])
def test_an_uninstall_says_what_still_starts_a_daemon(variable: str, units: list[str], said: str, own: Place,
                                                      tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                      capsys: pytest.CaptureFixture[str]) -> None:
    """Clients, unless they don't by their variable, or a unit of another's. Nothing removed, nothing said."""
    monkeypatch.setenv("LEEWARD_AUTOSTART", variable)
    for name in units:
        (tmp_path / "others" / name).touch()
    install(own)
    for removed in (True, False):
        assert 0 == app(["daemon", "uninstall", "--user"])
        out, err = capsys.readouterr()
        assert removed == (SERVICE in out)
        assert (said in err) if said and removed else ("" == err)


def test_an_uninstall_says_that_systemd_could_not_be_told_to_stop(own: Place, tmp_path: Path,
                                                                  monkeypatch: pytest.MonkeyPatch,
                                                                  capfd: pytest.CaptureFixture[str]) -> None:
    """The files go, and the status isn't 0, as what runs goes on; where systemd doesn't run nothing does."""
    def refuses(place: Place, *words: str, check: bool = True) -> None:
        if check:
            raise Unsupported("systemd", have=f"a failure of `{words[0]}`: no bus", need="one")

    for booted in (tmp_path, tmp_path / "nothing"):
        monkeypatch.setattr(Place, "manager", lambda place, *words, check=True: None)
        install(own)
        monkeypatch.setattr(Place, "manager", refuses)
        monkeypatch.setattr(module, "_BOOTED", str(booted))
        status = app(["daemon", "uninstall", "--user"])
        assert not own.folder.exists()
        err = capfd.readouterr().err
        assert (booted == tmp_path, booted == tmp_path) == (status > 0, "`disable`: no bus" in err)
        assert (booted == tmp_path) == ("until `systemctl --user stop leeward.socket leeward.service`" in err)


@pytest.mark.parametrize("kind", ["file", "link"])
def test_foreign_unit_files_stay(kind: str, root: Path) -> None:
    """Neither overwritten nor removed, and the other unit isn't written either."""
    place = Place(user=False, root=str(root))
    place.folder.mkdir(parents=True)
    path = place.folder / SOCKET
    if "file" == kind:
        path.write_text("mine")
    else:
        (root / "elsewhere").write_text(MARK)
        path.symlink_to(root / "elsewhere")
    for attempt in (install, uninstall):
        with pytest.raises(BadRequest, match="didn't write it"):
            attempt(place)
        assert [path.name] == os.listdir(place.folder)
    path.unlink()


def test_a_refusal_of_systemd_leaves_no_file(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or its absence: the written files are removed again."""
    place = Place(user=False, root=str(root))
    place.live = True
    monkeypatch.setattr(module, "_BOOTED", str(root / "none"))
    with monkeypatch.context() as barred:
        barred.setattr(module, "unreachable", lambda path: "/root")  # which is another cure, of no use here
        with pytest.raises(Unsupported, match="another service manager, or none"):
            install(place)
    monkeypatch.setattr(module, "_BOOTED", str(root))
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    with pytest.raises(Unsupported, match="leeward daemon start"):
        install(place)
    assert [] == [path for path in root.rglob("*") if not path.is_dir()]
    monkeypatch.setattr(module.shutil, "which", lambda name: "/bin/false")
    with pytest.raises(Unsupported, match="a failure of `systemctl show-environment`: exit status 1, need systemd as"
                                          " service manager; leeward daemon start does without"):
        install(place)


@pytest.mark.parametrize("home", ["", None])
def test_without_home_the_units_are_in_the_users_own_folder(home: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As systemd's manager of that user has it, not in the root."""
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("HOME")
    if home is not None:
        monkeypatch.setenv("HOME", home)

    assert Path(pwd.getpwuid(os.geteuid()).pw_dir, ".config/systemd/user") == Place(user=True).folder


def test_a_place_that_the_services_user_cannot_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the part of the path that bars him. /tmp is barred as a whole: the service has one of its own."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        closed = Path(folder) / "closed"
        closed.mkdir()
        program = closed / "python"
        program.write_text("")
        barred = []
        for mode, file_mode in ((0o755, 0o755), (0o755, 0o700), (0o750, 0o755)):
            os.chmod(folder, 0o755)
            closed.chmod(mode)
            program.chmod(file_mode)
            barred.append(unreachable(str(program)))
        monkeypatch.setattr(module.sys, "executable", str(program))
        with pytest.raises(BadRequest, match="a private /tmp"):
            check_reachable()
        monkeypatch.setattr(module.os.path, "realpath", lambda path: f"/opt{path}")
        monkeypatch.setattr(module, "unreachable", lambda path: "/opt")
        with pytest.raises(BadRequest, match="who can't read '/opt'"):
            install(Place(user=False, root="/nowhere"))

    assert ["", str(program), str(closed)] == barred
