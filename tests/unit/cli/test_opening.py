"""`leeward sandbox new --json` as a whole process, against a server whose sandboxes run ordinary programs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import leeward
from kit.sandbox_stand import Stand
from leeward_cli.for_programs import MOST
from unit.cli.test_sandboxes import command, run


def asked(stand: Stand, options: object) -> tuple[int, Any]:
    """Exit status, and what is told."""
    text = options if isinstance(options, bytes) else json.dumps(options).encode()
    status, out, err = run(stand, "sandbox", "new", "--json", text=text)
    assert b"" == err
    return status, json.loads(out)


def test_a_sandbox_by_its_options(stand: Stand) -> None:
    """Those of Python's Sandbox; it is left open."""
    status, told = asked(stand, {"metadata": {"run": "7"}, "memory": "64M", "env": {"A": "b"}, "idle": 50,
                                 "mounts": []})
    with leeward.Sandbox.attach(told["sandbox"], socket=stand.socket) as box:
        assert (0, {"run": "7"}, 50.0) == (status, box.info()["metadata"], box.info()["idle"])
        assert b"b\n" == box.shell("echo $A").stdout


@pytest.mark.parametrize("options", [
    b"", b"nonsense", b"\xff", b"[]", b"[" * 100_000, {"no_such_option": 1}, {"socket": "x"}, {"memory": "much"},
    {"mounts": 1}, {"mounts": [1]}, {"mounts": [{"source": "/"}]},
    {"mounts": [{"source": "/", "target": "/x", "mode": 1}]},
    {"mounts": [{"source": "/no/such", "target": "/x"}]}, {"overlay": True}, b" " * (MOST + 1)],
    ids=lambda options: repr(options)[:40])
def test_options_that_make_no_sense(stand: Stand, options: object) -> None:
    """One error, by its name, and status 1."""
    status, told = asked(stand, options)

    assert (1, "RequestRejected", False) == (status, told["error"]["type"], told["error"]["may_have_run"])


def test_a_daemon_that_is_away(stand: Stand, tmp_path: Path) -> None:
    """The error's name is that of the exception."""
    status, out, _ = run(stand, "sandbox", "new", "--json", "--socket", str(tmp_path / "none"), text=b"{}")

    assert (1, "DaemonAway") == (status, json.loads(out)["error"]["type"])


def test_options_come_one_way(stand: Stand) -> None:
    """An option on the command line beside it is a mistake, told before anything is read."""
    status, out, err = run(stand, "sandbox", "new", "--json", "--memory", "64M")

    assert (2, b"") == (status, out)
    assert b"standard input" in err


class Staying:
    """`leeward sandbox new --json --stay`, while this is open."""

    def __init__(self, stand: Stand, **options: object) -> None:
        self._process = subprocess.Popen(**command(stand, "sandbox", "new", "--json", "--stay"), text=True,
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.told = self._say(options)

    def _say(self, line: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(line), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def do(self, what: str, **more: object) -> Any:
        return self._say({"do": what, **more})

    def close(self) -> int:
        self._process.communicate()
        return self._process.wait(60)


def test_a_held_sandbox_ends_with_standard_input(stand: Stand) -> None:
    """Unless it was detached; of a second opening the first one ends; without `held` it stays."""
    def there() -> set[str]:
        return {row["sandbox"] for row in leeward.Sandbox.list(socket=stand.socket)}

    held, other = Staying(stand, held=True), Staying(stand, held=True)
    first, second, third = (each.do("open")["sandbox"] for each in (held, held, other))
    assert {second, third} == there() & {first, second, third}
    assert third == other.do("detach")["sandbox"]
    assert [0, 0] == [each.close() for each in (held, other)]
    assert {third} == there() & {second, third}
    leeward.Sandbox.attach(third, socket=stand.socket).close()


def test_a_stay_tells_errors_and_goes_on(stand: Stand) -> None:
    """Of the options, and of requests."""
    wrong = Staying(stand, state="lazy")
    assert "RequestRejected" == wrong.told["error"]["type"]
    wrong.close()
    made = Staying(stand, memory="much")
    assert {} == made.told
    assert ["RequestRejected"] * 2 == [made.do("open")["error"]["type"] for _ in range(2)]
    assert 0 == made.close()


def test_a_stay_without_json_is_a_mistake(stand: Stand) -> None:
    assert 2 == run(stand, "sandbox", "new", "--stay")[0]
