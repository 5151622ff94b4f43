"""What `leeward explain` says of a name in a result's `denied`."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from leeward.errors import BadRequest
from leeward.isolation.seccomp.syscalls import NUMBERS
from leeward_cli.full import cli
from leeward_cli.logs import explained_name as explain


@pytest.mark.parametrize(("name", "says"), [
    ("network", "`loopback = true`"),
    ("loopback", "servers and their clients within the job"),
    ("terminal", "`terminal = true`"),
    ("socket", "where the operator has set `loopback = true`"),
    ("ptrace", "ptrace: refused with EACCES, and counted in `denied`, in any case\n"),
    ("ioctl", "where the operator has set `terminal = true`"),
    ("memfd_create", "the supervisor grants and charges it"),
    ("sendfile", "EINVAL"),
])
def test_explain_names_the_refusal_and_its_cure(name: str, says: str) -> None:
    text = explain(name)

    assert text.startswith(f"{name}: ")
    assert says in text


@pytest.mark.parametrize("name", sorted(set().union(*NUMBERS.values())))
def test_every_call_has_a_reason(name: str) -> None:
    assert explain(name).count("\n") >= 3


def test_an_unknown_name_is_reported_with_the_nearest() -> None:
    with pytest.raises(BadRequest, match="there is no system call 'sokcet'; did you mean 'socket'"):
        explain("sokcet")
    with pytest.raises(BadRequest, match=r"no system call 'qqq'; a job's number, .* network, loopback, terminal can"):
        explain("qqq")


def test_the_command_takes_some_names() -> None:
    said = CliRunner().invoke(cli, ["explain", "network", "ptrace"])

    assert 0 == said.exit_code
    assert said.output.startswith("network: ")
    assert "\nptrace: " in said.output
