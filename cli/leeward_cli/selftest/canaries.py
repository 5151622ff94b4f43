"""
What the attacks are after: a file, a process, sockets and shared memory of this host, made for one run.

Runs in:   the CLI. Nothing of it is anybody's: the file holds a random text, the processes sleep.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
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
from types import TracebackType
from typing import Any

from leeward_cli.selftest.attack import calls

#: Calls that programs make by number.
_CALLS = ("unshare", "clone", "io_uring_setup", "add_key", "userfaultfd", "bpf", "perf_event_open", "ptrace",
          "process_vm_readv", "seccomp", "vmsplice", "mount", "umount2", "fsopen", "open_tree", "name_to_handle_at",
          "shmget")
#: A folder that isn't one of a job's own.
_PLACE = "/var/tmp"
#: Seconds that processes of a job have to be gone after its answer: they end then, not before.
GONE_S = 5.0

_IPC_CREAT, _IPC_EXCL, _IPC_RMID = 0o1000, 0o2000, 0


class Canaries:
    """
    Args:
        path: of the daemon's socket, "" if there is none that a job could try.
        environment: the daemon's, as far as it is known.
        cpu: percent of a processor that a job may have.
        until: waits until its argument says true, at most so many seconds; says whether it did.

    Attributes:
        token: the secret text; also in the daemon's environment, if the daemon is this run's own.
        mark: a name that nothing else on this host has. Jobs are given it backwards: their code isn't found by it.
        neighbour: the host's number of a process that a job in another worker has, 0 while there is none.
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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._stack.close()

    def _share(self, stack: contextlib.ExitStack) -> int:
        """
        The key of a System V segment that everybody may read, 0 where the host has none to give.
        """
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
        """
        Remove what jobs without a lock have left on this host.
        """
        of_jobs = self.mark[::-1]
        for folder in ("/tmp", "/var/tmp", "/dev/shm"):
            with contextlib.suppress(OSError):
                for name in os.listdir(folder):
                    if name.startswith(of_jobs):
                        with contextlib.suppress(OSError):
                            os.unlink(f"{folder}/{name}")

    def given(self) -> dict[str, Any]:
        """
        What a program needs to know. The victim lives when this returns.
        """
        victim = self._living_victim()
        numbers = calls()
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
        """
        Whether the process of the host was ended or stopped; a stopped one goes on then.
        """
        assert self._victim is not None
        if self._victim.poll() is not None:
            return f"signal {-self._victim.returncode} ended it"
        if "T" == _state(self._victim.pid):
            self._victim.send_signal(signal.SIGCONT)
            return "it was stopped"
        return ""

    def neighbour_is_hurt(self) -> str:
        if not self.neighbour:
            return ""
        return "" if _state(self.neighbour) not in ("", "Z", "X") else "it was ended"

    def left_behind(self) -> str:
        """
        A process of a job that lives on after the job's end.
        """
        found = f"{self.mark}-left"
        if self._until(lambda: not named(found), GONE_S):
            return ""
        left = named(found)
        for number in left:
            with contextlib.suppress(OSError):
                fd = os.pidfd_open(number)
                try:
                    if number in named(found):  # it is still the same process
                        signal.pidfd_send_signal(fd, signal.SIGKILL)
                finally:
                    os.close(fd)
        return f"process {left[0]}" if left else ""

    # --- the sockets ----------------------------------------------------------

    def somebody_called(self) -> str:
        """
        Which of the sockets has something, taken from it.
        """
        names = {self._tcp: "TCP", self._udp: "UDP", self._abstract: "the abstract socket"}
        ready = select.select(list(names), [], [], 0.05)[0]
        for sock in ready:
            if sock is self._udp:
                sock.recv(64)
            else:
                sock.accept()[0].close()
        return ", ".join(names[sock] for sock in ready) + (" arrived" if ready else "")


def named(text: str) -> list[int]:
    """
    Processes of this host with *text* in their command line.
    """
    found = []
    for number in os.listdir("/proc"):
        if number.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{number}/cmdline", "rb") as file:
                if text.encode() in file.read():
                    found.append(int(number))
    return found


def _state(pid: int) -> str:
    """
    The letter of a process's state, "" if it is gone.
    """
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def wait(condition: Callable[[], bool], seconds: float) -> bool:
    """
    For `Canaries(until=)`, where nobody else has to be given a turn.
    """
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True
