"""
`leeward selftest`: against the user's own daemon, or one that lives as long as the test.

Runs in:   the CLI.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator
from typing import Any

from leeward.client.blocking import Client
from leeward.client.connecting import connect
from leeward.client.conversation import Conversation
from leeward.client.options import execute_fields
from leeward.dataclass import dataclass
from leeward.errors import DaemonAway, LeewardError
from leeward.host import features
from leeward.outcome import Result
from leeward.spec.limits import Limits
from leeward_cli.background import temporary
from leeward_cli.control import Running
from leeward_cli.job import escape, write
from leeward_cli.selftest.canaries import Canaries, wait
from leeward_cli.selftest.report import as_object, as_text, holds
from leeward_cli.selftest.trial import ATTACKS, attempt

#: The variable of a private daemon's environment that holds the secret.
VARIABLE = "LEEWARD_SELFTEST_SECRET"


class ByDaemon:
    """
    trial.TriedSandbox over a daemon's socket.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._client = Client(path)
        self.until = wait

    def run(self, code: str, **options: Any) -> Result:
        return self._client.execute(code, **options)

    def beside(self, code: str, **options: Any) -> Callable[[], object]:
        sock = connect(self._path)
        assert sock is not None
        sock.sendall(Conversation().request("execute", execute_fields(code, **options))[1])
        return sock.close  # which ends its job

    def close(self) -> None:
        self._client.close()


@dataclass(frozen=True, slots=True)
class Target:
    """
    The daemon that is tested.

    Attributes:
        private: it lives as long as this test.
        environment: the daemon's, as far as this user may read it.
        cpu: percent of a processor that its jobs have by default.
    """

    path: str
    private: bool
    environment: dict[str, str]
    cpu: int


@contextlib.contextmanager
def target(path: str, private: bool, token: str) -> Iterator[Target]:
    """
    The daemon on *path*; or one of this test's own, if that is asked for or nobody answers there.
    """
    if not private:
        try:
            daemon = Running(path)
        except DaemonAway:
            private = True
        else:
            daemon.close()
            yield Target(path, False, environment_of(daemon.pid), _default_cpu())
            return
    environment = {**os.environ, VARIABLE: token}
    with temporary("selftest", "--pool-size=2", "--log-level=error", env=environment) as own:
        yield Target(own, True, environment, _default_cpu())


def environment_of(pid: int) -> dict[str, str]:
    """
    The environment that a process was started with; empty where this user may not read it.
    """
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            content = file.read()
    except OSError:
        return {}
    pairs = (entry.partition("=") for entry in os.fsdecode(content).split("\0") if entry)
    return {name: value for name, _, value in pairs}


def _default_cpu() -> int:
    from leeward.daemon.config_sources import load

    try:
        return load().limits.cpu
    except LeewardError:
        return Limits().cpu


def lacks_of(status: dict[str, Any], cpu: int) -> dict[str, str]:
    """
    What a daemon with this *status* says it has not, of Attack.needs.

    Args:
        cpu: percent of a processor that its jobs have. Without controllers each worker has one processor.
    """
    group = status.get("layers", {}).get("cgroup", {})
    if group.get("driver") in ("v1", "v2") or cpu >= 100:
        return {}
    return {"controllers": "no cgroup controllers: a worker has one processor, and nothing holds less than one"}


def run(path: str, private: bool, as_json: bool) -> int:
    """
    Try every attack, show what came of it; return the exit status: 0 only if all were held.

    Raises:
        LeewardError: no daemon could be asked.
    """
    token = secrets.token_hex(8)
    with target(path, private, token) as daemon, contextlib.closing(ByDaemon(daemon.path)) as sandbox:
        with Client(daemon.path) as client:
            status = client.status()
        with Canaries(daemon.path, daemon.environment, token, daemon.cpu, wait) as canaries:
            findings = list(attempt(sandbox, ATTACKS, canaries, lacks_of(status, daemon.cpu)))
    found = features()
    if as_json:
        import json

        about = {"socket": daemon.path, "private": daemon.private, "degraded": status.get("degraded", [])}
        write(1, json.dumps(as_object(findings, found, about)).encode() + b"\n")
    else:
        head = "against a daemon of its own" if daemon.private else f"against the daemon on {daemon.path}"
        write(1, escape(f"leeward selftest, {head}\n{as_text(findings, found)}".encode("utf-8", "backslashreplace")))
    return 0 if holds(findings) else 1
