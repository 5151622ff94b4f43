"""
Escapes from the profile `shell`, which shows the whole host: what is secret, what can be written, who can be spoken to.

What must hold: nothing of the host is written; what is hidden stays so, whatever the host does to its files meanwhile;
no socket of the host's is reached; and nobody reads what the daemon's user couldn't read without set-id programs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import leeward
from kit import packages
from kit.box import control
from kit.host_folders import as_user
from kit.live_daemon import LiveDaemon
from leeward.client.connection import BlockingConnection

BY_VEIL = pytest.mark.no_single_lock("mounts hide it, which no capability and no system call of a job's takes away")
BY_FILTER = pytest.mark.no_single_lock("a filter of this profile's own; the control is a sandbox of another profile")
BY_MOUNTS = pytest.mark.no_single_lock("the mounts, Landlock and no capability hold it together, in any one's place")
BY_DAEMON = pytest.mark.no_single_lock("the daemon refuses the request before there is a sandbox")
ROOT = 0 == os.geteuid()
_TWO_USERS = 4244

#: In the home folder, each with the token.
SECRETS = (".ssh/id_ed25519", ".gnupg/private", ".aws/credentials", ".config/gcloud/token", ".kube/config",
           ".docker/config.json", ".netrc", ".pypirc", ".npmrc", ".bash_history", ".python_history",
           ".local/share/keyrings/login.keyring", ".mozilla/firefox/logins.json", ".config/chromium/Cookies")

CONNECT = """
import os, socket, sys
path = sys.argv[1]
try:
    one = socket.socket(socket.AF_UNIX)
except OSError as error:
    print("socket", error.errno)
    one = socket.socketpair()[0]
try:
    one.connect(path)
    one.sendall(b"stream")
    print("connected")
except OSError as error:
    print("connect", error.errno)
try:
    socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b"datagram", path + ".datagrams")
    print("sent")
except OSError as error:
    print("datagram", error.errno)
"""


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """A home folder, in which a kernel's file system is mounted, if we may."""
    with tempfile.TemporaryDirectory(prefix="leeward-home-", dir=packages.outside_tmp()) as made:
        folder = Path(made)
        for name in ("project/deep", "run", "chroot/proc"):
            (folder / name).mkdir(parents=True)
        (folder / "open").write_text("for all to read\n")
        _open_to_all(folder)
        if ROOT:
            subprocess.run(["mount", "-t", "proc", "proc", folder / "chroot/proc"], check=True)
        yield folder
        if ROOT:
            # Not held up by anybody who is in it: else the folder's removal would go into the kernel's files.
            subprocess.run(["umount", "--lazy", folder / "chroot/proc"], check=True)


@pytest.fixture(scope="module")
def daemon(home: Path) -> Iterator[LiveDaemon]:
    with tempfile.TemporaryDirectory(prefix="lw-view-") as place:
        os.chmod(place, 0o755)
        config = Path(place, "config.toml")
        config.write_text(f'group = "{pwd.getpwnam("nobody").pw_gid}"\n' if ROOT else "")
        (Path(place) / "socket").mkdir(mode=0o755)
        with LiveDaemon(Path(place) / "socket", "--pool-size", "2", "--config", str(config)) as made:
            yield made


@pytest.fixture
def token(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What is secret. The client's home and current folder are there."""
    token = secrets.token_hex(16)
    for name in SECRETS:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(token)
    for name in (".env", ".env.local", "project/.env", "project/.env.production"):
        (home / name).write_text(f"KEY={token}\n")
    _open_to_all(home)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home / "project")
    yield token
    for folder in {name.split("/")[0] for name in SECRETS}:
        shutil.rmtree(home / folder) if (home / folder).is_dir() else (home / folder).unlink()


def _open_to_all(folder: Path) -> None:
    """A daemon of root's shows what others may read."""
    for place, folders, files in os.walk(folder):
        os.chmod(place, 0o755)
        folders[:] = [name for name in folders if "chroot" != name]
        for name in files:
            os.chmod(os.path.join(place, name), 0o644)


def shell(daemon: LiveDaemon, line: str, **options: bool) -> str:
    with leeward.Sandbox(socket=daemon.socket, profile="shell", **options) as box:
        result = box.shell(line)
        return result.stdout_text + result.stderr_text


@pytest.mark.smoke
@BY_VEIL
def test_c271_cannot_read_secrets(daemon: LiveDaemon, home: Path, token: str) -> None:
    """By name, by a look at everything, and when the host writes them anew, as programs do: another file in the place."""
    every = " ".join(f"{home}/{name}" for name in SECRETS)
    with control():
        assert len(SECRETS) == shell(daemon, f"cat {every}", show_secrets=True).count(token)
    with leeward.Sandbox(socket=daemon.socket, profile="shell") as box:
        assert "for all to read\n" == box.shell(f"cat {home}/open").stdout_text
        look = f"cat {every} {home}/.config/gh/new {home}/.pgpass; grep -rs {token} {home}; ls -a {home} {home}/.config"
        for name in (*SECRETS, ".pgpass", ".config/gh/new"):
            before = box.shell(look)
            assert token not in before.stdout_text + before.stderr_text
            new = home / f"{name}.new"
            new.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(token)
            new.chmod(0o644)
            new.rename(home / name)
        after = box.shell(look)
        assert token not in after.stdout_text + after.stderr_text
        assert not {".ssh", ".netrc", ".pgpass", "gcloud", "gh"} & set(after.stdout_text.split())
    (home / ".pgpass").unlink()


@BY_VEIL
def test_c272_cannot_read_secrets_in_the_current_folder_or_files_beside_it(daemon: LiveDaemon, home: Path, token: str,
                                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The .env files of the current folder, in home and below /tmp; and the files beside the folder, which aren't shown
    at all.
    """
    with tempfile.TemporaryDirectory(prefix="lw-view-") as made:
        place = Path(made)
        (place / "project").mkdir()
        for name in ("project/.env", "project/file", "beside"):
            (place / name).write_text(token if "project/file" != name else "shown\n")
        _open_to_all(place)
        for cwd in (home / "project", place / "project"):
            monkeypatch.chdir(cwd)
            with control():
                assert token in shell(daemon, "cat .env", show_secrets=True)
                assert (cwd != place / "project") or token == (cwd / "../beside").read_text()
            (cwd / ".env.example").write_text("an example\n")
            (cwd / ".env.example").chmod(0o644)
            with leeward.Sandbox(socket=daemon.socket, profile="shell") as box:
                (cwd / "new").write_text(token)
                (cwd / "new").chmod(0o644)
                (cwd / "new").rename(cwd / ".env")
                got = box.shell("pwd; ls -a . ..; cat .env* ../beside ../.env; cat file")
                assert got.stdout_text.startswith(f"{cwd}\n")
                assert token not in got.stdout_text + got.stderr_text
                assert ("shown\n" in got.stdout_text) is (cwd == place / "project")
                assert "beside" not in got.stdout_text
                assert "an example\n" in got.stdout_text


@BY_FILTER
def test_c273_c274_cannot_connect_to_a_socket_of_the_host(daemon: LiveDaemon, home: Path, token: str) -> None:
    """One that listens in the view: by a new socket, by one of a pair, by datagrams of a pair."""
    path = home / "run/door"
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
        server.bind(str(path))
        datagrams.bind(f"{path}.datagrams")
        for each in (path, Path(f"{path}.datagrams")):
            each.chmod(0o777)
        server.listen()
        server.settimeout(30)
        datagrams.settimeout(30)
        with control(), leeward.Sandbox(socket=daemon.socket, mounts=[leeward.Mount(home / "run", "/data")]) as box:
            assert ["connected", "sent"] == box.execute(CONNECT, args=["/data/door"]).stdout_text.split()
            with server.accept()[0] as connection:
                assert (b"stream", b"datagram") == (connection.recv(9), datagrams.recv(9))
        for options in ({}, {"show_secrets": True}):
            with leeward.Sandbox(socket=daemon.socket, profile="shell", **options) as box:
                assert 0 == box.shell(f"test -S {path}").exit_code
                seen = box.execute(CONNECT, args=[str(path)])
                assert ["socket", "13", "connect", "13", "datagram", "13"] == seen.stdout_text.split()
                screen = box.terminal(["python3", "-c", CONNECT, str(path)])
                assert b"datagram 13" in screen.result().stdout
        server.setblocking(False)
        datagrams.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
        with pytest.raises(BlockingIOError):
            datagrams.recv(1)
    path.unlink()
    Path(f"{path}.datagrams").unlink()


@pytest.mark.needs("root")
@BY_MOUNTS
def test_c275_a_set_id_program_has_no_effect(daemon: LiveDaemon, home: Path, token: str) -> None:
    program = home / "project/who"
    shutil.copy("/usr/bin/id", program)
    program.chmod(0o6755)
    with control():
        assert "0\n" == subprocess.run([program, "-u"], user=_TWO_USERS, capture_output=True, text=True).stdout
    assert "65534\n65534\n" == shell(daemon, f"{program} -u; {program} -g")
    program.unlink()


@pytest.mark.needs("root")
@BY_MOUNTS
def test_c276_cannot_read_what_root_alone_reads_beside_its_own_files(daemon: LiveDaemon, home: Path, token: str,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's sandbox reads root's files; not those of others, nor secrets in /etc and those that are hidden by name."""
    places = [home / "thirds/file", home / ".ssh/id_ed25519", home / ".env", Path("/etc/lw-secret")]
    mine = home / "private/file"
    for path in (*places, mine):
        path.parent.mkdir(exist_ok=True)
        path.write_text(token)
        path.chmod(0o600)
    os.chown(places[0], _TWO_USERS, _TWO_USERS)
    (home / "private").chmod(0o700)
    every = " ".join(map(str, [*places, "/etc/shadow"]))
    try:
        with control():
            assert 4 == subprocess.run(["cat", *places], capture_output=True, text=True).stdout.count(token)
            assert token in shell(daemon, f"cat {mine}")
        got = shell(daemon, f"cat {every}")
        assert (5, 0) == (got.count("Permission denied") + got.count("No such file"), got.count(token))
    finally:
        for path in (*places, mine):
            path.unlink()
        for name in ("private", "thirds"):
            (home / name).rmdir()


@BY_MOUNTS
def test_c277_cannot_write_anywhere(daemon: LiveDaemon, home: Path, token: str) -> None:
    """But in folders that are gone with the sandbox."""
    with control():
        (home / "open").write_text("for all to read\n")
        assert "for all to read\n" == (home / "open").read_text()
    with leeward.Sandbox(socket=daemon.socket, profile="shell") as box:
        for line in (f"echo x >>{home}/open", f"rm {home}/open", f"mv {home}/open {home}/b", f"chmod 777 {home}/open",
                     f"touch {home}/open", f"mkdir {home}/d", f"ln -s x {home}/l", f"ln {home}/open {home}/run/l",
                     f"rmdir {home}/run", "touch x", "touch /x", "mkdir /etc/x", "touch /usr/x", "rm /etc/passwd",
                     f"truncate -s 0 {home}/open", f"touch {home}/.netrc", f"touch {home}/project/.env",
                     "touch /home/x /opt/x /root/x /dev/x /proc/x /sys/x", f"mknod {home}/n p", "chmod 777 /",
                     f"chmod 600 {home}", f"ln -s x {home}/project/l", f"setfattr -n user.x -v 1 {home}/open"):
            assert 0 != box.shell(line).exit_code, line
        assert 0 == box.shell("for f in /tmp /var /run; do echo x >$f/lw-view || exit 1; done").exit_code
    assert "for all to read\n" == (home / "open").read_text()
    assert not [place for place in ("/tmp", "/var", "/run") if Path(place, "lw-view").exists()]
    assert "" == shell(daemon, "cat /tmp/lw-view 2>&- || ls /tmp /var /run | grep lw-view")


@BY_VEIL
def test_c278_cannot_change_the_mounts(daemon: LiveDaemon, home: Path, token: str) -> None:
    """Take a cover away, show elsewhere what is below it, mount it writable, or leave for another namespace."""
    take = f"umount -l {home} || umount -l {home}/.ssh; cat {home}/.ssh/*"
    with control():
        covered = f"mount -t tmpfs none {home}/.ssh; cat {home}/.ssh/*; {take}"
        got = subprocess.run(["unshare", *([] if ROOT else ["-Ur"]), "-m", "sh", "-c", covered], capture_output=True,
                             text=True, check=False)
        assert (1, 1) == (got.stdout.count(token), got.stderr.count(".ssh/*"))
    with leeward.Sandbox(socket=daemon.socket, profile="shell") as box:
        for line in (take, f"mount --bind / /tmp && cat /tmp{home}/.ssh/*", f"mount -o remount,rw {home}",
                     f"unshare -Urm sh -c '{take}'", f"mount -t tmpfs none {home}"):
            got = box.shell(line)
            assert 0 != got.exit_code, line
            assert token not in got.stdout_text
        calls = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for number, *args in ((166, b"{home}", 2), (428, -100, b"{home}", 1), (429, 0, b"", -100, b"/tmp", 4), (272, 0x20000),
                      (165, b"/", b"/tmp", None, 4096, None), (155, b".", b"."), (161, b"/tmp"), (308, 0, 0)):
    assert -1 == libc.syscall(number, *args), number
    print(ctypes.get_errno() in (1, 13, 38))
"""
        if "x86_64" == os.uname().machine:
            assert "True\n" * 8 == box.execute(calls).stdout_text
        assert token not in box.shell(f"cat {home}/.ssh/*").stdout_text


@BY_VEIL
def test_c279_cannot_see_the_hosts_processes(daemon: LiveDaemon, home: Path, token: str) -> None:
    """In /proc, or in one that the host has mounted elsewhere; nor what /sys has."""
    ours, proc = os.getpid(), home / "chroot/proc"
    with control():
        assert Path(f"/proc/{ours}/environ").exists()
        assert Path("/sys/kernel").exists()
        assert not ROOT or (proc / f"{ours}/environ").exists()
    look = f"cat /proc/{ours}/environ {proc}/{ours}/environ; ls {proc} /sys/kernel; ls /proc | grep -c '^[0-9]'"
    got = shell(daemon, look)
    assert (2, 1) == (got.count("/environ: No such file"), got.count("/sys/kernel'"))
    assert [True] == [int(line) < 8 for line in got.splitlines() if line.isdigit()]


@BY_DAEMON
def test_c280_the_shell_profile_refuses_egress_environments_mounts_and_other_users(daemon: LiveDaemon, home: Path,
                                                                                   token: str) -> None:
    """Another user, whom the daemon serves; mounts, which would be writable; a network; an environment of packages."""
    def opened(**fields: object) -> str:
        connection = BlockingConnection(str(daemon.socket))
        try:
            reply, _ = connection.call("sandbox_open", fields, retry=False)
            assert reply.ok is not None
            connection.call("sandbox_kill", {"sandbox": reply.ok["sandbox"]})
        except leeward.DaemonError as why:
            return str(why)
        finally:
            connection.close()
        return "opened"

    with control():
        assert "opened" == opened(profile="shell") == opened()
    assert "no egress" in opened(profile="shell", egress="any")
    assert "no environment" in opened(profile="shell", environment="any")
    assert "are of the profile" in opened(show_secrets=True)
    rows = [{"path": str(home), "target": str(home), "writable": True}]
    assert "takes no mount" in opened(profile="shell", cwd=str(home), mounts=rows, dock=1)
    if ROOT:
        def refused() -> None:
            assert "opened" == opened()
            assert "other rights than that user has" in opened(profile="shell")
        assert as_user(_TWO_USERS, refused)


@BY_DAEMON
def test_c290_an_operators_no_to_showing_secrets(home: Path, token: str) -> None:
    """
    By each client and the command line: refused, as what it is. What doesn't ask for it goes on.

    Each daemon is made when the secrets are there: a folder that has a /proc in it is shown with the files that it has
    when the daemon makes its first worker.
    """
    def asked(own: LiveDaemon) -> list[str]:
        found = []
        try:
            found.append(shell(own, "cat ~/.netrc", show_secrets=True))
        except leeward.Forbidden as why:
            found.append(str(why))

        async def awaited() -> None:
            async with leeward.AsyncSandbox(socket=own.socket, profile="shell", show_secrets=True) as box:
                found.append((await box.shell("cat ~/.netrc")).stdout_text)
        try:
            asyncio.run(awaited())
        except leeward.Forbidden as why:
            found.append(str(why))
        done = own.run("exec", "--profile", "shell", "--show-secrets", "--", "cat ~/.netrc")
        found.append((done.stdout + done.stderr).decode())
        done = own.run("sandbox", "new", "--profile", "shell", "--show-secrets")
        if done.returncode:
            return [*found, done.stderr.decode()]
        with leeward.Sandbox.attach(done.stdout.decode().strip(), socket=own.socket) as box:
            return [*found, box.shell("cat ~/.netrc").stdout_text]

    with control(), _daemon_with("") as lenient:
        assert [True] * 4 == [token in each for each in asked(lenient)]
    with _daemon_with("show_secrets = false\n") as own:
        for each in asked(own):
            assert "the operator of this daemon has set show_secrets = false" in each
            assert token not in each
        assert token not in shell(own, "cat ~/.netrc")
        assert "for all to read\n" == shell(own, f"cat {home}/open")


@contextlib.contextmanager
def _daemon_with(settings: str) -> Iterator[LiveDaemon]:
    with tempfile.TemporaryDirectory(prefix="lw-view-") as place:
        os.chmod(place, 0o755)
        config = Path(place, "config.toml")
        config.write_text(settings)
        with LiveDaemon(Path(place), "--pool-size", "1", "--config", str(config)) as made:
            yield made
