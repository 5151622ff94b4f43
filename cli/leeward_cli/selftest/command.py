"""`leeward selftest`: tests the user's own daemon, or a daemon that is started for the test."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import click

from leeward.apps.host import features
from leeward.base.dataclass import dataclass
from leeward.client.blocking import Client
from leeward.client.connecting import connect
from leeward.client.conversation import Conversation
from leeward.client.options import execute_fields
from leeward.daemon.config_sources import load
from leeward.errors import DaemonAway, LeewardError
from leeward.spec.limits import Limits
from leeward.spec.outcome import Result
from leeward.spec.paths import client_socket
from leeward_cli.background import temporary
from leeward_cli.click_options import SOCKET
from leeward_cli.daemon_commands import Running
from leeward_cli.messages import escape, write
from leeward_cli.selftest.attacks import ATTACKS
from leeward_cli.selftest.canaries import Canaries, wait
from leeward_cli.selftest.trial import as_object, as_text, attempt, holds

#: The variable of a private daemon's environment that holds the secret.
VARIABLE = "LEEWARD_SELFTEST_SECRET"


class ByDaemon:
    def __init__(self, path: str) -> None:
        self._path = path
        self._client = Client(path)
        self.until = wait

    def run(self, code: str, **options: Any) -> Result:
        return self._client.execute(code, **options)

    def beside(self, code: str, **options: Any) -> Callable[[], object]:
        """Start a job. Returns a function that ends it."""
        sock = connect(self._path)
        assert sock is not None
        sock.sendall(Conversation().request("execute", execute_fields(code, **options))[1])
        return sock.close  # closing it ends the job

    def close(self) -> None:
        self._client.close()


@dataclass(frozen=True, slots=True)
class Target:
    """The daemon that is tested: its environment as far as this user may read it, percent of a processor of its jobs."""

    path: str
    private: bool
    environment: dict[str, str]
    cpu: int


@contextlib.contextmanager
def target(path: str, private: bool, token: str) -> Iterator[Target]:
    """A context with the daemon on *path*; or with a new daemon, if *private* is True or no daemon answers on *path*."""
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
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            content = file.read()
    except OSError:
        return {}
    pairs = (entry.partition("=") for entry in os.fsdecode(content).split("\0") if entry)
    return {name: value for name, _, value in pairs}


def _default_cpu() -> int:
    try:
        return load().limits.cpu
    except LeewardError:
        return Limits().cpu


def lacks_of(status: dict[str, Any], cpu: int) -> dict[str, str]:
    """The values of Attack.needs that a daemon with this *status* lacks, each with the reason; *cpu* as `Target` has it."""
    group = status.get("layers", {}).get("cgroup", {})
    if group.get("driver") in ("v1", "v2") or cpu >= 100:
        return {}
    return {"controllers": "no cgroup controllers: a worker has one processor, and nothing holds less than one"}


def run(path: str, private: bool, as_json: bool) -> int:
    """Try every attack, and show the findings. Returns the exit status: 0 only if all attacks were held."""
    token = secrets.token_hex(8)
    with target(path, private, token) as daemon, contextlib.closing(ByDaemon(daemon.path)) as sandbox:
        with Client(daemon.path) as client:
            status = client.status()
        with Canaries(daemon.path, daemon.environment, token, daemon.cpu, wait) as canaries:
            findings = list(attempt(sandbox, ATTACKS, canaries, lacks_of(status, daemon.cpu)))
    found = features()
    if as_json:
        about = {"socket": daemon.path, "private": daemon.private, "degraded": status.get("degraded", [])}
        write(1, json.dumps(as_object(findings, found, about)).encode() + b"\n")
    else:
        head = "against a daemon of its own" if daemon.private else f"against the daemon on {daemon.path}"
        write(1, escape(f"leeward selftest, {head}\n{as_text(findings, found)}".encode("utf-8", "backslashreplace")))
    return 0 if holds(findings) else 1


@click.command()
@click.option("--private", is_flag=True, help="Test a daemon that is started for this; the default if none answers.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@SOCKET
def selftest(private: bool, as_json: bool, socket: str | None) -> int:
    """
    Attack this host from inside the sandbox, harmlessly, and show which lock held each attack.

    Each row is an attack of the project's catalogue, run as a job. Whether it succeeded is checked outside, by
    the file, the process or the socket that it aimed at. The exit status is 0 only if every attack was held.
    """
    if private and socket:
        raise click.UsageError("--private starts a daemon on a socket of its own: no --socket with it")
    return run(client_socket(socket), private, as_json)
