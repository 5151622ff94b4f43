"""
The targets of the attacks: a file, a process, sockets and shared memory of this host, made for one run.

None is of use to anybody: the file has a random text, and the process sleeps.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

from leeward.base.closing import OwnedFd
from leeward.isolation.seccomp.syscalls import NUMBERS

#: System calls that programs make by number.
_CALLS = ("unshare", "clone", "io_uring_setup", "add_key", "userfaultfd", "bpf", "perf_event_open", "ptrace",
          "process_vm_readv", "seccomp", "vmsplice", "mount", "umount2", "fsopen", "open_tree", "name_to_handle_at",
          "shmget")
#: The folder for the secret file, which isn't one of a job's own folders.
_PLACE = "/var/tmp"
#: Seconds that processes of a job have to end after the job's answer; they are killed only after it.
GONE_S = 5.0

_IPC_CREAT, _IPC_EXCL, _IPC_RMID = 0o1000, 0o2000, 0


class Canaries:
    """
    A context with the targets.

    Args:
        path: the path of the daemon's socket; "" if there is none that a job could try.
        environment: the daemon's environment, as far as it is known; if the daemon is this run's own it has *token*.
        cpu: percent of a processor that a job may use.
        until: waits for a function that returns true, so many seconds at most. Returns whether it did.

    Attributes:
        mark: a name that nothing else on this host has. Jobs get it reversed, so that their code doesn't have it.
        neighbour: the host's pid of a process of a job in another worker; 0 while there is none.
    """

    def __init__(self, path: str, environment: Mapping[str, str], token: str, cpu: int,
                 until: Callable[[Callable[[], bool], float], bool]) -> None:
        self._path, self.daemon_environment, self.token, self._until = path, environment, token, until
        self._cpu = cpu
        self.mark = f"lw{secrets.token_hex(6)}"
        self.neighbour = 0
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Canaries:
        with contextlib.ExitStack() as stack:
            folder = tempfile.mkdtemp(prefix="leeward-selftest-", dir=_PLACE)
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            os.chmod(folder, 0o755)
            self._secret = f"{folder}/secret"
            with open(self._secret, "w") as file:
                file.write(self.token)
            os.chmod(self._secret, 0o644)
            self._victim: subprocess.Popen[bytes] | None = None
            stack.callback(self._end_victim)
            self._tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            self._udp = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
            self._udp.bind(("127.0.0.1", 0))
            self._abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
            self._abstract.bind(f"\0{self.mark}")
            self._abstract.listen(8)
            self._key = self._share(stack)
            stack.callback(self._tidy)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _share(self, stack: contextlib.ExitStack) -> int:
        """Make a System V segment that all users may read. Returns its key; 0 if the host has no such segments."""
        libc = ctypes.CDLL(None, use_errno=True)
        key = secrets.randbelow(1 << 30) + 1
        number = libc.shmget(key, 4096, _IPC_CREAT | _IPC_EXCL | 0o666)
        if number < 0:
            return 0
        stack.callback(libc.shmctl, number, _IPC_RMID, None)
        libc.shmat.restype = ctypes.c_void_p
        at = libc.shmat(number, None, 0)
        ctypes.memmove(at, self.token.encode(), 16)
        libc.shmdt(ctypes.c_void_p(at))
        return key

    def _tidy(self) -> None:
        """Remove files that jobs have left on this host because a lock was missing."""
        of_jobs = self.mark[::-1]
        for folder in ("/tmp", "/var/tmp", "/dev/shm"):
            with contextlib.suppress(OSError):
                for name in os.listdir(folder):
                    if name.startswith(of_jobs):
                        with contextlib.suppress(OSError):
                            os.unlink(f"{folder}/{name}")

    def given(self) -> dict[str, Any]:
        """The values for a program. The victim is alive when this returns."""
        victim = self._living_victim()
        numbers = NUMBERS[platform.machine()]
        return {"calls": {name: numbers[name] for name in _CALLS if name in numbers}, "mark": self.mark[::-1],
                "secret": self._secret, "victim": victim.pid, "neighbour": self.neighbour, "socket": self._path,
                "tcp": self._tcp.getsockname()[1], "udp": self._udp.getsockname()[1], "abstract": self.mark,
                "shared": self._key, "cpu": self._cpu}

    # --- the processes --------------------------------------------------------

    def _living_victim(self) -> subprocess.Popen[bytes]:
        if self._victim is None or self._victim.poll() is not None:
            self._victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", self.mark],
                                            stdin=subprocess.DEVNULL, start_new_session=True)
        return self._victim

    def _end_victim(self) -> None:
        if self._victim is not None:
            self._victim.kill()
            self._victim.wait()

    def victim_is_hurt(self) -> str:
        """How the process of the host was ended or stopped; "" if it wasn't. A stopped process is continued."""
        assert self._victim is not None
        if self._victim.poll() is not None:
            return f"signal {-self._victim.returncode} ended it"
        if _state(self._victim.pid) == "T":
            self._victim.send_signal(signal.SIGCONT)
            return "it was stopped"
        return ""

    def neighbour_is_hurt(self) -> str:
        if not self.neighbour:
            return ""
        return "" if _state(self.neighbour) not in ("", "Z", "X") else "it was ended"

    def left_behind(self) -> str:
        """A process of a job that lives on after the job's end, as text; "" if there is none. Kills it."""
        found = f"{self.mark}-left"
        if self._until(lambda: not named(found), GONE_S):
            return ""
        left = named(found)
        for number in left:
            with contextlib.suppress(OSError), OwnedFd(os.pidfd_open(number)) as fd:
                if number in named(found):  # the pid is still that process's
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
        return f"process {left[0]}" if left else ""

    # --- the sockets ----------------------------------------------------------

    def arrived(self) -> str:
        """The sockets at which something arrived, as text; "" for none. Takes the data or connection from them."""
        names = {self._tcp: "TCP", self._udp: "UDP", self._abstract: "the abstract socket"}
        ready = select.select(list(names), [], [], 0.05)[0]
        for sock in ready:
            if sock is self._udp:
                sock.recv(64)
            else:
                sock.accept()[0].close()
        return ", ".join(names[sock] for sock in ready) + (" arrived" if ready else "")


def named(text: str) -> list[int]:
    found = []
    for number in os.listdir("/proc"):
        if number.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{number}/cmdline", "rb") as file:
                if text.encode() in file.read():
                    found.append(int(number))
    return found


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def wait(condition: Callable[[], bool], seconds: float) -> bool:
    """For `Canaries(until=)`, if no event loop has to run meanwhile."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True
