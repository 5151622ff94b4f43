"""What the operator forbids for good, and the hosts that are allowed: from the file to what is decided."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.apps.approvals.operator_file import MOST_BYTES, OperatorPolicy, default_file, operator_policy, parse_policy
from leeward.apps.approvals.queue.approval_request import NewRequest
from leeward.apps.approvals.queue.queue import ApprovalQueue
from leeward.apps.approvals.queue.subjects import endpoint, invocation
from leeward.errors import BadRequest
from leeward.spec import writers

TEXT = b"""
forbidden = ["exec(git push **)", "network(*.internal.example)"]
endpoints = ["api.example.org", "10.0.0.7"]
"""


def test_the_operators_file_decides_before_every_rule_and_mode(tmp_path: Path) -> None:
    policy = parse_policy(TEXT)
    queue = ApprovalQueue(str(tmp_path), forbidden=policy.forbidden, endpoints=policy.endpoints)
    for rule in ("exec(git push **)", "network(x.internal.example)"):
        queue.add_rule(rule, "allow")
    queue.set_mode("network", "deny-all")

    found = [queue.submit(NewRequest(subject, "ask", sandbox="box")) for subject in (
        invocation("git push origin main"), endpoint("x.internal.example", 443), endpoint("v1.api.example.org", 443),
        endpoint("10.0.0.7", 22), endpoint("example.org", 443))]
    queue.close()

    assert [("denied", "rule"), ("denied", "rule"), ("approved", "rule"), ("approved", "rule"),
            ("denied", "mode")] == [(each.status, each.decided_by) for each in found]


@pytest.mark.parametrize(("content", "why"), [
    (b"forbidden = 'exec'", "array of texts"), (b"endpoints = [1]", "array of texts"), (b"forbid = []", "no such keys"),
    (b"forbidden = ['exec()']", "forbidden: 'exec\\(\\)'"), (b"forbidden = ['cooking(*)']", "no category"),
    (b"endpoints = ['']", "endpoints: ''"), (b"endpoints = ['*.example.org']", "endpoints"), (b"forbidden = [", "TOML"),
    (b"\xff", "TOML"), (b"x = " + b"[" * 5000, "within each other"),
    (b"forbidden = [" + b"'git(x)'," * 1001 + b"]", "more than 1000")])
def test_half_of_a_list_is_no_list(content: bytes, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        parse_policy(content)


@given(st.one_of(st.binary(max_size=100), st.text(max_size=100).map(str.encode)))
def test_any_bytes_are_a_policy_or_one_error(content: bytes) -> None:
    try:
        parse_policy(content)
    except BadRequest:
        pass


def test_the_operators_file_is_at_its_default_path(tmp_path: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert f"{tmp_path}/leeward/approvals.toml" == default_file(env)
    assert "/home/me/.config/leeward/approvals.toml" == default_file({"HOME": "/home/me", "XDG_CONFIG_HOME": "x"})
    assert OperatorPolicy() == operator_policy(None, env)
    with pytest.raises(BadRequest, match="no such file"):
        operator_policy(str(tmp_path / "none"), env)

    path = tmp_path / "leeward" / "approvals.toml"
    path.parent.mkdir()
    path.write_bytes(TEXT)
    path.chmod(0o644)
    assert 2 == len(operator_policy(None, env).forbidden)


def test_a_file_that_others_may_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "_has_owner_alone", lambda group, owner: False)
    path = tmp_path / "f"
    path.write_bytes(TEXT)
    path.chmod(0o664)
    with pytest.raises(BadRequest, match=f"lets others write it; chmod go-w {path}"):
        operator_policy(str(path), {})
    path.chmod(0o600)
    path.write_bytes(b"#" * (MOST_BYTES + 1))
    with pytest.raises(BadRequest, match="larger than"):
        operator_policy(str(path), {})
    os.mkfifo(tmp_path / "fifo")
    for name in ("fifo", "."):
        with pytest.raises(BadRequest, match=r"no regular file|directory"):
            operator_policy(str(tmp_path / name), {})
