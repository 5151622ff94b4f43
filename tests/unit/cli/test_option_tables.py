"""One option, one meaning: the tables of the command line, the configuration, the clients and the C library agree."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import click
import pytest
from click.testing import CliRunner

from kit.c_client import CLIENT
from leeward import AsyncClient, AsyncSession, Client, Session
from leeward.client import options
from leeward.daemon.config import EGRESS, Config
from leeward.daemon.config_keys import ENVIRONMENTS, KEYS, PROFILES, RENAMED, TABLES, USERS
from leeward.spec.limits import ADJUSTABLE, OF_JOBS, OVERFLOW
from leeward.wire.requests import Execute, SessionOpen
from leeward_cli.full import cli
from leeward_cli.options import DAEMON, JOB, OPTIONS, Option, flag, number

#: Options of `daemon run` that aren't keys of the configuration, with the reason.
NO_KEYS = {"config_file": "names a file of keys"}

#: What a client calls a limit, where that isn't the limit's name.
LIMITS = {"timeout": "time"}

#: Options of `exec` that aren't options of a client, with the reason.
COMMANDS_OWN = {"--file": "is read into the code", "--put": "is read into files", "--into": "where files go",
                "--show-secrets": "a sandbox of its own, of Sandbox's options", "--package": "is packages",
                "--image": "as --show-secrets", "--user": "as --show-secrets",
                "--json": "how the result is shown", "--network": "is allow_network",
                "--raw": "how the result is shown", "--socket": "of the connection"}

#: Fields of leeward_options that a client has in another place, or that say how long another field is.
C_OWN = {"size": "the struct's version", "deadline": "`retry` and deadline of the call", "idempotent": "of the call",
         "no_retry": "of the call", "no_retry_busy": "of the call", "spare": "for later versions"}
C_NAMES = {"arguments": "args", "environment": "env", "stdin_data": "stdin"}
#: What Python's clients alone can ask for.
PYTHONS_OWN = {**dict.fromkeys(("functions", "call_timeout", "stop_clock"), "libleeward serves no calls"),
               **dict.fromkeys(options.ArrivalOptions.__annotations__, "libleeward calls nothing while a job runs"),
               "allow_network": "is a policy, too",
               "policy": "of egress",
               "egress": "a policy of the operator's, for Python's clients and `leeward exec` by them",
               "profile": "of sandboxes, in libleeward", "packages": "installed by Python's clients",
               "environment": "in leeward_options `environment` is what Python calls env"}


def daemons_own() -> list[Any]:
    return [pytest.param(option, id=option.name) for option in DAEMON if option.parameter not in NO_KEYS]


@pytest.mark.parametrize("option", daemons_own())
def test_an_option_of_the_daemon_is_a_key(option: Option) -> None:
    """With the same values: a flag where the key is one, a number where it is one, and the same choices."""
    key = KEYS[option.parameter]
    if option.kind is flag:
        assert key.check(True) is True
    elif option.kind is number:
        assert 7 == key.check(7)
        with pytest.raises(ValueError, match="whole"):
            key.check("7")
    elif isinstance(option.kind, tuple):
        for word in option.kind:
            assert key.check([word] if option.many else word)
        listed = [word for word in re.findall(r"\w+", key.comment) if word in option.kind]
        assert set(listed) == set(option.kind)
        with pytest.raises(ValueError, match=option.kind[0]):
            key.check(["nothing"] if option.many else "nothing")


@pytest.mark.parametrize("option", daemons_own())
def test_an_options_help_gives_its_default(option: Option) -> None:
    """Where the help gives one."""
    default = getattr(Config(), option.parameter)
    given = re.search(r"\[default: (.+)\]", option.help)
    if given is not None:
        assert given[1] == (("off", "on")[default] if isinstance(default, bool) else str(default))
    else:
        assert default in ("", (), False, -1)


def test_every_key_has_one_place_in_the_configuration() -> None:
    """The dataclass with the defaults and the table with the checks have the same names, and no former name is in use."""
    named = [each.name for each in fields(Config)]  # type: ignore[arg-type]  # see dataclass.py
    assert [*KEYS, *TABLES, USERS, ENVIRONMENTS, PROFILES, EGRESS] == named
    assert not set(RENAMED) & set(KEYS)
    assert set(RENAMED.values()) <= set(KEYS)


@pytest.mark.parametrize("word", [f"--{no}{old}" for old in RENAMED for no in ("", "no-")])
@pytest.mark.parametrize("command", ["run", "start"])
def test_a_former_name_is_refused_with_the_new_one(command: str, word: str) -> None:
    done = CliRunner().invoke(cli, ["daemon", command, word])

    assert 2 == done.exit_code
    assert f"{word} is called {word.replace('express', 'fast-path')} now" in done.output


def keywords(function: Any) -> set[str]:
    return {name for name, each in inspect.signature(function).parameters.items() if each.KEYWORD_ONLY == each.kind}


def test_the_clients_options_are_the_requests_fields() -> None:
    """The fields of an execute request, with its limits by name. What is told of functions is in the one field of theirs."""
    request = {each.name for each in fields(Execute)}  # type: ignore[arg-type]  # see dataclass.py
    asked = {LIMITS.get(name, name) for name in options.Options.__annotations__}

    # Of functions; a policy, in the field egress; an environment of that name; and what isn't sent.
    one_field = {"call_timeout", "stop_clock", "allow_network", "packages", *options.ArrivalOptions.__annotations__}
    assert one_field <= asked
    assert asked - one_field == (request - {"id", "session", "code", "limits"}) | {*OF_JOBS, OVERFLOW}
    ours = {"packages", *options.ArrivalOptions.__annotations__}
    assert keywords(options.execute_fields) == set(options.Options.__annotations__) - ours


def test_a_sessions_options_are_those_of_its_requests() -> None:
    """A session has the limits, and each of its jobs what is its own."""
    of_session = {each.name for each in fields(SessionOpen)}  # type: ignore[arg-type]  # see dataclass.py
    asked = {LIMITS.get(name, name) for name in options.SessionOptions.__annotations__}

    assert asked - {"allow_network", "packages"} == (of_session - {"id", "limits"}) | {*ADJUSTABLE, OVERFLOW}
    assert set(options.Limiting.__annotations__) < set(options.Options.__annotations__)
    assert set(options.TurnOptions.__annotations__) < set(options.Options.__annotations__)


@pytest.mark.parametrize("name", ["execute", "session"])
def test_both_clients_have_the_same_options(name: str) -> None:
    ours, asyncs = (inspect.signature(getattr(kind, name)) for kind in (Client, AsyncClient))

    assert list(ours.parameters) == list(asyncs.parameters)


def test_both_sessions_have_the_same_options() -> None:
    ours, asyncs = (inspect.signature(kind.execute) for kind in (Session, AsyncSession))

    assert list(ours.parameters) == list(asyncs.parameters)


def test_exec_has_options_of_the_clients() -> None:
    """Under the same name, but for what is the command's own."""
    named = {"module" if "-m" == option.name else option.name[2:].replace("-", "_") for option in OPTIONS["exec"]
             if option.name not in COMMANDS_OWN}

    assert named <= set(options.Options.__annotations__)
    assert {option.name for option in JOB} <= {option.name for option in OPTIONS["run"]}


def test_the_c_library_has_the_clients_options() -> None:
    """Each field of leeward_options is an option of Python's clients, or the length of one."""
    text = (CLIENT / "leeward.h").read_text().partition("typedef struct leeward_options {\n")[2].partition("}")[0]
    names = [match[1] for line in text.splitlines() if (match := re.match(r"\t[\w \*]*?\*?(\w+);", line))]
    lengths = [name for name in names if name.endswith(("_count", "_length"))]
    given = {C_NAMES.get(name, name) for name in names if name not in C_OWN and name not in lengths}

    assert given == set(options.Options.__annotations__) - set(PYTHONS_OWN)
    assert len(lengths) == 5


def commands(command: click.Command, name: str = "leeward") -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for each in command.list_commands(ctx):
            inner = command.get_command(ctx, each)
            assert inner is not None
            yield from commands(inner, f"{name} {each}")


def test_short_flags_are_the_same_everywhere() -> None:
    """-s is --socket and -t --timeout, of each command that has these; and of no other option."""
    pairs = {("-s", "--socket"), ("-t", "--timeout")}
    found = {(name, short in param.opts, long in param.opts) for name, command in commands(cli) for short, long in pairs
             for param in command.params if isinstance(param, click.Option)}

    assert [] == [name for name, short, long in found if short != long]
    assert {"leeward exec", "leeward daemon run", "leeward sandbox new"} <= {name for name, short, _ in found if short}


def test_each_command_has_its_help_by_one_letter() -> None:
    for name, command in commands(cli):
        # click keeps the option that it made first: for a test that ran the command without its group.
        vars(command)["_help_option"] = None
        done = CliRunner().invoke(cli, [*name.split()[1:], "-h"], prog_name="leeward")

        assert (0, True) == (done.exit_code, done.output.startswith("Usage: leeward")), name
