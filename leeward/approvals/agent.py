"""
The requesting side: a client for programs in a sandbox, and the bridge that carries their requests out of it.

Runs in:   a process of a sandbox, UNTRUSTED. It is copied there, so it imports nothing but the standard library.
Trust:     whatever this file does, a hostile process of the sandbox can do as well, and more. Nothing here decides.
Frames:    on the bridge's standard output, and from its standard input: four bytes of length, the larger first, then an
           array of JSON. Out: [number, method, path, body]. In: [number, status, body], or [0, seconds left or null],
           which says that the service lives. A connection to the bridge's socket sends one object a line, and gets one
           for each.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any, BinaryIO

#: Where the bridge listens, and the variable that tells programs.
SOCKET, VARIABLE = "/tmp/.leeward/approvals.sock", "LEEWARD_APPROVALS"

#: Bytes of one frame, and of one line, at most.
MOST_FRAME = 4 << 20

#: Seconds without a word from the service after which it counts as gone.
SILENCE_S = 15.0

#: Connections at once, and requests that are under way.
MOST_CONNECTIONS = 32

#: Seconds that one request for a decision waits; then the next one is sent.
_WAIT_S = 20.0


#: What a request may be, and characters of its path, with its query, at most.
METHODS, MOST_PATH = ("GET", "POST", "PUT", "DELETE"), 2000


def _is_path(path: str) -> bool:
    return path.startswith("/") and len(path) <= MOST_PATH and path.isascii() and path.isprintable()


class AskError(Exception):
    """
    The service refused what was asked.

    Args:
        status: as HTTP has them: 400 for no request, 403 for what a sandbox may not do, 429 for too many.
        message: why, for people.
    """

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(f"{message} ({status})")


class ServiceGone(AskError):
    """
    Nobody decides any more.
    """

    def __init__(self) -> None:
        super().__init__(503, "the service for approvals is gone")


class Agent:
    """
    Asks for what leaves the sandbox, and waits for the answer.

        agent = Agent()
        if agent.request_permission("network", host="example.org")["status"] == "approved":
            ...

    Args:
        path: of the bridge's socket; else LEEWARD_APPROVALS, else the place where it is by default.
        watchdog: end this process by SIGTERM when the service is gone or its time is over.

    Raises:
        ServiceGone: no bridge listens.
    """

    def __init__(self, path: str = "", *, watchdog: bool = False) -> None:
        self._path = path or os.environ.get(VARIABLE) or SOCKET
        if watchdog:
            held = self._connect()
            threading.Thread(target=self._watch, args=(held,), name="watchdog", daemon=True).start()

    def _connect(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.connect(self._path)
        except OSError:
            made.close()
            raise ServiceGone from None
        return made

    @staticmethod
    def _watch(held: socket.socket) -> None:
        try:
            while held.recv(65536):
                pass
        except OSError:
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    def call(self, method: str, path: str, body: object = None) -> Any:
        """
        One request of docs/approvals.md.

        Raises:
            AskError: it was refused.
        """
        line = json.dumps({"method": method, "path": path, "body": body}).encode() + b"\n"
        if len(line) > MOST_FRAME:
            raise AskError(413, f"a request has {MOST_FRAME} bytes at most")
        with self._connect() as made, made.makefile("rb") as file:
            try:
                made.sendall(line)
                answer = file.readline()
            except OSError:
                raise ServiceGone from None
        if not answer.endswith(b"\n"):
            raise ServiceGone
        said = json.loads(answer)
        if said["status"] >= 400:
            body = said["body"]
            why = body.get("detail") or body.get("error") if isinstance(body, dict) else body
            raise AskError(said["status"], str(why))
        return said["body"]

    def wait(self, number: int, timeout: float | None = None) -> dict[str, Any]:
        """
        Wait until one of the sandbox's own requests is decided.

        Args:
            number: its id.
            timeout: seconds at most.

        Returns:
            The request; its `status` is "pending" where the time has passed.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _WAIT_S if end is None else max(0.0, min(_WAIT_S, end - time.monotonic()))
            found: dict[str, Any] = self.call("GET", f"/api/requests/{number}?wait={left:.3f}")
            if "pending" != found["status"] or (end is not None and time.monotonic() >= end):
                return found

    def request_permission(self, category: str, *, wait: bool = True, timeout: float | None = None,
                           **fields: Any) -> dict[str, Any]:
        """
        Ask for one thing.

        Args:
            category: "network" with `host` and `port`; "filesystem" with `action` ("write", "edit", "delete"), `path`,
                and `content`, or `old` and `new`; "sandbox" with `action`, one line.
            wait: come back when it is decided.
            timeout: seconds to wait at most.
            fields: as above, and `description` and `reason`, for the person who decides.

        Returns:
            The request: `id`, `status` ("approved", "denied", "pending", "expired", "superseded"), `decided_by`, ...
            Where a person has approved a part of a change it is superseded, and `replaced_by` is the id of that part.

        Raises:
            AskError: it was refused.
        """
        made: dict[str, Any] = self.call("POST", "/api/requests", {"category": category, **fields})
        return self.wait(made["id"], timeout) if wait else made

    def request_exec(self, command: str | list[str], *, cwd: str = "", reason: str = "", timeout: float = 300.0,
                     wait: bool = True) -> dict[str, Any]:
        """
        Ask for a command to be run, and wait for its end.

        Returns:
            `id`, `status` ("pending", "approved", "denied", "running", "completed", "failed"), and where it was run
            `exit_code` and `output`. The id is another one than before where whoever approved it had it run elsewhere.
        """
        made = self.call("POST", "/api/exec", {"command": command, "cwd": cwd, "reason": reason, "timeout": timeout})
        return self._run(made["id"], wait)

    def _run(self, number: int, wait: bool) -> dict[str, Any]:
        while True:
            if wait:
                self.wait(number)
            found: dict[str, Any] = self.call("GET", f"/api/exec/{number}?wait={_WAIT_S if wait else 0}")
            if not wait or found["status"] in ("denied", "completed", "failed"):
                return found

    def request_packages(self, command: str | list[str], *, reason: str = "",
                         wait: bool = True) -> list[dict[str, Any]]:
        """
        Ask for packages by the command that would add or remove them, such as "npm install -D react".

        Returns:
            For each package, as `request_exec`.
        """
        made = self.call("POST", "/api/packages", {"command": command, "reason": reason})
        return [self._run(each["id"], wait) for each in made["requests"]]

    def propose_config(self, key: str, value: object, *, reason: str = "", wait: bool = False,
                       timeout: float | None = None) -> dict[str, Any]:
        """
        Propose a key of the service's configuration.
        """
        made: dict[str, Any] = self.call("POST", "/api/propose", {"key": key, "value": value, "reason": reason})
        return self.wait(made["id"], timeout) if wait else made

    def sync_files(self) -> list[dict[str, Any]]:
        """
        Ask for all that was changed in this sandbox's copy of the project.
        """
        found: list[dict[str, Any]] = self.call("POST", "/api/sync/files", {})["requests"]
        return found

    def sync_git(self) -> list[dict[str, Any]]:
        """
        Ask for the branches that were pushed to origin in this sandbox.
        """
        found: list[dict[str, Any]] = self.call("POST", "/api/sync/git", {})["requests"]
        return found

    def list_pending(self) -> list[dict[str, Any]]:
        """
        The sandbox's own requests that wait for a decision.
        """
        found: list[dict[str, Any]] = self.call("GET", "/api/requests")["requests"]
        return found

    def get_config(self) -> dict[str, Any]:
        """
        The configuration: each key with its value.
        """
        found: dict[str, Any] = self.call("GET", "/api/config")
        return found


class Bridge:
    """
    The bridge: a socket for the sandbox's processes, and frames to and from the service.

    Args:
        path: of the socket.
        source: frames of the service's.
        sink: frames for the service.
    """

    def __init__(self, path: str, source: BinaryIO, sink: BinaryIO) -> None:
        self._source, self._sink, self._lock = source, sink, threading.Lock()
        self._numbers, self._waiting = 0, dict[int, queue.SimpleQueue[list[Any]]]()
        self._heard, self._until = time.monotonic(), float("inf")
        self._room = threading.Semaphore(MOST_CONNECTIONS)
        if os.path.lexists(path):
            os.unlink(path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(64)

    def run(self) -> None:
        """
        Until the service is silent, or its time is over.
        """
        for each in (self._receive, self._accept, self._greet):
            threading.Thread(target=each, daemon=True).start()
        while time.monotonic() < min(self._heard + SILENCE_S, self._until):
            time.sleep(0.2)

    def _greet(self) -> None:
        """
        A first request, by which the service knows that the socket is there.
        """
        self._answer(b'{"method": "GET", "path": "/api/status"}')

    def _receive(self) -> None:
        while len(head := self._source.read(4)) == 4:
            said = json.loads(self._source.read(struct.unpack("!I", head)[0]))
            self._heard = time.monotonic()
            if said[0]:
                with self._lock:
                    waiting = self._waiting.pop(said[0], None)
                if waiting is not None:
                    waiting.put(said)
            elif said[1] is not None:
                self._until = time.monotonic() + said[1]
        self._heard = float("-inf")

    def _accept(self) -> None:
        while True:
            made, _ = self._listener.accept()
            if self._room.acquire(blocking=False):
                threading.Thread(target=self._serve, args=(made,), daemon=True).start()
            else:
                made.close()

    def _serve(self, made: socket.socket) -> None:
        try:
            with made, made.makefile("rb") as file:
                while (line := file.readline(MOST_FRAME)).endswith(b"\n"):
                    made.sendall(json.dumps(self._answer(line)).encode() + b"\n")
        except OSError:
            pass
        finally:
            self._room.release()

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            asked = json.loads(line)
            method, path, body = asked["method"], asked["path"], asked.get("body")
            if method not in METHODS or not _is_path(path):
                raise ValueError(path)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {"status": 400, "body": {"detail": "no request: an object with method, path and body"}}
        waiting: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()
        with self._lock:
            self._numbers += 1
            number = self._numbers
            self._waiting[number] = waiting
            self._send([number, method, path, body])
        said = waiting.get()
        return {"status": said[1], "body": said[2]}

    def _send(self, frame: Iterable[Any]) -> None:
        data = json.dumps(frame).encode()
        self._sink.write(struct.pack("!I", len(data)) + data)
        self._sink.flush()


def main() -> None:
    """
    Be the bridge.
    """
    path = os.environ.get(VARIABLE) or SOCKET
    os.makedirs(os.path.dirname(path), exist_ok=True)
    Bridge(path, sys.stdin.buffer, sys.stdout.buffer).run()
    os._exit(0)  # threads still wait


if __name__ == "__main__":
    main()
