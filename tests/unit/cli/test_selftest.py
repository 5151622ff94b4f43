"""`leeward selftest`: its table, and that a row can fail. tests/integration/test_selftest.py runs it."""

from __future__ import annotations

import ast
import json
import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kit.features import ROOT
from kit.locks import BUILT_IN, LOCKS
from leeward.apps.host.findings import Feature, Support
from leeward.spec.outcome import JobError, Outcome, Result
from leeward_cli.selftest import trial
from leeward_cli.selftest.attacks import ATTACKS, OWN, RIGHTS
from leeward_cli.selftest.canaries import Canaries, wait
from leeward_cli.selftest.command import environment_of, lacks_of
from leeward_cli.selftest.trial import (
    HELD,
    MISSING,
    OPEN,
    UNTRIED,
    Attack,
    Finding,
    attempt,
    did,
    secret_read,
    seen_of,
)

#: What isn't one of the tests' locks and holds a row all the same.
IN_WORDS = {"the daemon's clock", "a process for each job"}
AREAS = ["namespaces", "network", "mounts", "/proc", "system calls", "rights", "descriptors", "limits",
         "the job before"]

ROW = Attack("c012", "mounts", "read a file", ("mounts",), "def attack():\n    return 1\n")


def answer(outcome: Outcome = Outcome.FINISHED, error: JobError | None = None, **said: Any) -> Result:
    text = b"before\n" + json.dumps(said).encode() if said else b""
    return Result(text, b"", 0, outcome, error=error)


def canaries(**more: Any) -> Any:
    return SimpleNamespace(**{"token": "secret", "daemon_environment": {}, "given": dict, "mark": "m", "neighbour": 0,
                              **more})


def test_the_selftest_table_covers_every_area() -> None:
    """At least 25 rows over every area; each program compiles, has a number of the catalogue and names known locks."""
    catalogue = (ROOT / "tests/escapes/CATALOGUE.md").read_text()
    assert len(ATTACKS) >= 25
    assert AREAS == list(dict.fromkeys(attack.area for attack in ATTACKS))
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)
    for attack in ATTACKS:
        tree = ast.parse(attack.program)
        assert any(isinstance(node, ast.FunctionDef) and "attack" == node.name for node in tree.body), attack.name
        assert f"\n| {attack.number} |" in catalogue, attack.name
        assert {*attack.locks} <= LOCKS | BUILT_IN | IN_WORDS, attack.name
        assert attack.only in {"", *attack.locks}, attack.name
        assert attack.needs in ("", "controllers")
    assert LOCKS - {"job-pipe", "late-limit", "hard-limit"} <= {lock for attack in ATTACKS for lock in attack.locks}


@pytest.mark.parametrize(("result", "state", "said"), [
    (answer(did=None), HELD, "no effect"), (answer(did=""), HELD, "no effect"), (answer(did="it"), OPEN, "it"),
    (answer(refused="EACCES"), HELD, "EACCES"), (answer(failed="NameError: x"), UNTRIED, "NameError: x"),
    (answer(), UNTRIED, "it ended as finished without an answer"),
    (answer(Outcome.SIGNALLED), UNTRIED, "it ended as signalled without an answer"),
    (answer(Outcome.RAISED, JobError("SyntaxError", "bad", "")), UNTRIED, "it ended as raised without an answer: bad"),
    (Result(b'\n{"other": 1}', b"", 0, Outcome.FINISHED), UNTRIED, "it ended as finished without an answer"),
    (Result(b"\n[1]", b"", 0, Outcome.FINISHED), UNTRIED, "it ended as finished without an answer"),
])
def test_only_a_refusal_is_held(result: Result, state: str, said: str) -> None:
    """A program that fails by itself, or says nothing, has shown nothing."""
    sandbox: Any = SimpleNamespace(run=lambda code, **options: result)
    (finding,) = attempt(sandbox, (ROW,), canaries())

    assert (state, said) == (finding.state, finding.said)


def test_an_end_that_is_an_answer() -> None:
    """Where the row says so."""
    sandbox: Any = SimpleNamespace(run=lambda code, **options: answer(Outcome.OUT_OF_MEMORY))
    (finding,) = attempt(sandbox, (replace(ROW, ends=(Outcome.OUT_OF_MEMORY,)),), canaries())

    assert (HELD, "out_of_memory") == (finding.state, finding.said)


def test_a_feature_that_the_daemon_lacks_is_not_tried() -> None:
    """The row is missing, with the daemon's reason."""
    sandbox: Any = SimpleNamespace(run=lambda code, **options: pytest.fail("tried"))
    lacks = lacks_of({"layers": {"cgroup": {"driver": "none"}}}, 50)
    (finding,) = attempt(sandbox, (replace(ROW, needs="controllers"),), canaries(), lacks)

    assert MISSING == finding.state
    assert "no cgroup controllers" in finding.said
    assert {} == lacks_of({"layers": {"cgroup": {"driver": "v1"}}}, 50)
    assert {} == lacks_of({"layers": {"cgroup": {"driver": "none"}}}, 100)  # a worker has one processor


def test_an_attack_proves_success_by_its_evidence() -> None:
    """A returned value, the secret in any output, a variable of the daemon's that a job doesn't have by itself."""
    assert "it" == did(canaries(), seen_of(ROW, (answer(did=""), answer(did="it"))))
    assert secret_read(canaries(), seen_of(ROW, (Result(b"x", b"..secret..", 0, Outcome.FINISHED),)))
    assert not secret_read(canaries(), seen_of(ROW, (answer(refused="ENOENT"),)))
    environment = next(attack for attack in RIGHTS if "environment" in attack.locks)
    outside = canaries(daemon_environment={"KEY": "value", "HOME": "/workspace"})
    for found, leaked in (({"KEY": "value"}, "KEY"), ({"X": "a secret"}, "X"), ({"HOME": "/workspace"}, ""), ({}, "")):
        assert leaked == environment.judge(outside, seen_of(environment, (answer(did=found),)))
    assert "HOME" in OWN


def test_the_canaries_tell() -> None:
    """A process that ends or stops, a call on each socket, what a job has left: each is seen, once."""
    import socket

    with Canaries("", {}, "0" * 16, 100, wait) as live:
        given = live.given()
        assert "" == live.victim_is_hurt() == live.arrived() == live.left_behind() == live.neighbour_is_hurt()
        os.kill(given["victim"], 19)
        assert wait(lambda: "it was stopped" == live.victim_is_hurt(), 10)
        os.kill(given["victim"], 9)
        assert wait(lambda: "signal 9 ended it" == live.victim_is_hurt(), 10)
        assert given["victim"] != live.given()["victim"]
        with socket.create_connection(("127.0.0.1", given["tcp"])), socket.socket(type=socket.SOCK_DGRAM) as udp, \
                socket.socket(socket.AF_UNIX) as unix:
            udp.sendto(b"x", ("127.0.0.1", given["udp"]))
            unix.connect("\0" + given["abstract"])
            assert "TCP, UDP, the abstract socket arrived" == live.arrived()
        assert "" == live.arrived()
        with open(given["secret"]) as file:
            assert "0" * 16 == file.read()
    assert not os.path.exists(given["secret"])
    assert {"PATH"} <= environment_of(os.getpid()).keys()
    assert {} == environment_of(2**22)


FEATURES = (Feature("cgroup", Support.LIMITED, "no controllers", "rlimits", "delegate some"),
            Feature("landlock", Support.OK, "ABI 7"))


def test_the_report_gives_states_locks_and_cures() -> None:
    """States, locks, and below what wasn't held its cure; a hole where this host lacks nothing for it."""
    limits = replace(ROW, locks=("limits",), area="limits", name="take memory")
    findings = [Finding(ROW, HELD, "ENOENT"), Finding(ROW, OPEN, "read"), Finding(limits, MISSING, "none"),
                Finding(limits, UNTRIED, "busy")]
    text = trial.as_text(findings, FEATURES)
    shown = trial.as_object(findings, FEATURES, {"private": True})

    assert "  held    c012  read a file  by mounts (ENOENT)\n" in text.replace("read a file  ", "read a file ").replace(
        "read a file ", "read a file  ")
    assert "cure: delegate some" in text
    assert "1 of 4 attacks were held" in text
    assert ["", trial._HOLE, "delegate some", ""] == [row["cure"] for row in shown["rows"]]
    assert (False, ["cgroup"]) == (shown["held"], [feature["name"] for feature in shown["missing"]])
    assert trial.holds(findings[:1])
    assert not trial.holds(findings[2:3])
    assert not trial.holds(findings[3:])
