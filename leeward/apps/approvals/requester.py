"""
The requesting side: a client for programs in a sandbox, and the bridge that carries their requests out of it.

Runs in:   a process of a sandbox, UNTRUSTED. The file is copied there, so it imports only the standard library.
Trust:     none: a hostile process of the sandbox can do all that this file does, and more. Nothing here decides.
Frames:    on the bridge's standard output and standard input: a length of four bytes, big-endian, then an array of
           JSON. Out: [number, method, path, body]. In: [number, status, body], or the heartbeat [0, seconds left or
           null]. A connection to the bridge's socket sends one JSON object a line, and gets one line for each.
"""

from __future__ import annotations

import contextlib
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

#: The bridge's socket, and the environment variable with its path.
SOCKET, VARIABLE = "/tmp/.leeward/approvals.sock", "LEEWARD_APPROVALS"

#: Bytes of one frame, and of one line, at most.
MOST_FRAME = 4 << 20

#: Seconds without a frame of the service, after which the service counts as gone.
SILENCE_S = 15.0

#: Connections at once, each with one request at a time.
MOST_CONNECTIONS = 32

_NO_ROOM = (f'{{"status": 503, "body": {{"detail": "a sandbox has {MOST_CONNECTIONS} connections to the service at once;'
            ' close one"}}\n').encode()

#: Seconds that one call waits for a decision before the client sends the next one.
_WAIT_S = 20.0

#: The methods of a request, and the most characters of its path and query together.
METHODS, MOST_PATH = ("GET", "POST", "PUT", "DELETE"), 2000


def _is_path(path: str) -> bool:
    return path.startswith("/") and len(path) <= MOST_PATH and path.isascii() and path.isprintable()


class AskError(Exception):
    """
    The service refused a request.

    Args:
        status: of HTTP: 400 for a malformed request, 403 for what a sandbox may not do, 429 for too many.
        message: the reason, for people.
    """

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(f"{message} ({status})")


class ServiceGone(AskError):
    """The service for approvals, or the bridge to it, has ended."""

    def __init__(self) -> None:
        super().__init__(503, "the service for approvals is gone")


class Agent:
    """
    A client of the service for approvals: makes requests, and waits for the decisions.

        agent = Agent()
        if agent.request_permission("network", host="example.org")["status"] == "approved":
            ...

    Args:
        path: of the bridge's socket; "" for that of LEEWARD_APPROVALS, or without it SOCKET.
        watchdog: send this process SIGTERM when the service ends or its time is over.

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

    def call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """
        Call a route of the service, as docs/approvals.md lists them.

        Args:
            method: one of METHODS.
            path: of the route, with its query; MOST_PATH characters at most.
            body: for JSON; None for none.

        Returns:
            The answer's object.

        Raises:
            AskError: the service refused the call.
            ServiceGone: no bridge listens, or it ended before it answered.
        """
        line = json.dumps({"method": method, "path": path, "body": body}).encode() + b"\n"
        if len(line) > MOST_FRAME:
            raise AskError(413, f"a request has {MOST_FRAME} bytes at most")
        with self._connect() as made, made.makefile("rb") as file:
            try:
                with contextlib.suppress(BrokenPipeError):  # a bridge that has no room says so without reading
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
        found: dict[str, Any] = said["body"]
        return found

    def wait(self, number: int, timeout: float | None = None) -> dict[str, Any]:
        """
        Wait until one of the sandbox's own requests is decided, *timeout* seconds at most (None: without end).

        Returns the request; its `status` is "pending" after *timeout*. AskError if there is no such request of this
        sandbox.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _WAIT_S if end is None else max(0.0, min(_WAIT_S, end - time.monotonic()))
            found = self.call("GET", f"/api/requests/{number}?wait={left:.3f}")
            if found["status"] != "pending" or (end is not None and time.monotonic() >= end):
                return found

    def request_permission(self, category: str, *, wait: bool = True, timeout: float | None = None,
                           **fields: Any) -> dict[str, Any]:
        """
        Make one request.

        Args:
            category: "network" with `host` and `port`; "filesystem" with `action` ("write", "edit", "delete"), `path`,
                and `content`, or `old` and `new`; "sandbox" with `action`, one line.
            wait: return after the decision; False to return at once.
            timeout: seconds to wait at most; None to wait without end.
            fields: those of the category, and `description` and `reason`, for the person who decides.

        Returns:
            The request: `id`, `status` ("approved", "denied", "pending", "expired", "superseded"), `decided_by`, ...
            If a person has approved a part of a change, the request is superseded, and `replaced_by` is the id of the
            request for that part.

        Raises:
            AskError: the service refused the request.
        """
        made = self.call("POST", "/api/requests", {"category": category, **fields})
        return self.wait(made["id"], timeout) if wait else made

    def request_exec(self, command: str | list[str], *, cwd: str = "", reason: str = "", timeout: float = 300.0,
                     wait: bool = True) -> dict[str, Any]:
        """
        Request that a command is run, and wait for its end.

        Args:
            command: a line of a shell, or arguments.
            cwd: the folder to start in, absolute or relative to the project; "" for the project.
            reason: for the person who decides.
            timeout: seconds that the command may run.
            wait: return after the end of the command; False to return at once.

        Returns:
            `id`, `status` ("pending", "approved", "denied", "running", "completed", "failed"), and `exit_code` and
            `output` of a command that was run. The id differs from that of the request if a person had the command
            run in another profile.

        Raises:
            AskError: the service refused the request.
        """
        made = self.call("POST", "/api/exec", {"command": command, "cwd": cwd, "reason": reason, "timeout": timeout})
        return self._run(made["id"], wait)

    def _run(self, number: int, wait: bool) -> dict[str, Any]:
        while True:
            if wait:
                self.wait(number)
            found = self.call("GET", f"/api/exec/{number}?wait={_WAIT_S if wait else 0}")
            if not wait or found["status"] in ("denied", "completed", "failed"):
                return found

    def request_packages(self, command: str | list[str], *, reason: str = "",
                         wait: bool = True) -> list[dict[str, Any]]:
        """
        Request packages by the command that would add or remove them, such as "npm install -D react".

        Returns for each package what `request_exec` returns. AskError if the service refused the request.
        """
        made = self.call("POST", "/api/packages", {"command": command, "reason": reason})
        return [self._run(each["id"], wait) for each in made["requests"]]

    def propose_config(self, key: str, value: object, *, reason: str = "", wait: bool = False,
                       timeout: float | None = None) -> dict[str, Any]:
        """
        Propose a value for a key of the service's configuration; a person decides.

        Returns the request, as `request_permission` does. AskError if there is no such key, or the value isn't one of
        it.
        """
        made = self.call("POST", "/api/propose", {"key": key, "value": value, "reason": reason})
        return self.wait(made["id"], timeout) if wait else made

    def sync_files(self) -> list[dict[str, Any]]:
        """Make a request for each change in this sandbox's copy of the project; returns the requests."""
        return self._requests("POST", "/api/sync/files", {})

    def sync_git(self) -> list[dict[str, Any]]:
        """Make a request for each branch that was pushed to `origin` in this sandbox; returns the requests."""
        return self._requests("POST", "/api/sync/git", {})

    def list_pending(self) -> list[dict[str, Any]]:
        """The sandbox's own pending requests."""
        return self._requests("GET", "/api/requests")

    def _requests(self, *call: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.call(*call)["requests"]
        return found

    def get_config(self) -> dict[str, Any]:
        """The service's configuration: each key with its value."""
        return self.call("GET", "/api/config")


class Bridge:
    """Carries requests from a Unix socket at *path* in the sandbox to the service as frames, and the answers back."""

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
        """Serve until the service is silent for SILENCE_S seconds, or until its time is over."""
        for each in (self._receive, self._accept, self._greet):
            threading.Thread(target=each, daemon=True).start()
        while time.monotonic() < min(self._heard + SILENCE_S, self._until):
            time.sleep(0.2)

    def _greet(self) -> None:
        """Send a first request, which shows the service that the socket listens."""
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
                with made, contextlib.suppress(OSError):
                    made.sendall(_NO_ROOM)

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
    """Run the bridge on standard input and output, and end the process."""
    path = os.environ.get(VARIABLE) or SOCKET
    os.makedirs(os.path.dirname(path), exist_ok=True)
    Bridge(path, sys.stdin.buffer, sys.stdout.buffer).run()
    os._exit(0)  # threads still block in reads and accepts


if __name__ == "__main__":
    main()
