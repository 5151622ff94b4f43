"""
The command line of `leeward agent start`: one table of its options, and a parser for correct lines.

Runs in:   the CLI. The user waits for the agent to start, and importing click takes as long as opening the sandbox. So
           click is used only for the help, from this table, and for the errors of a wrong line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leeward_cli.options import Option

#: The options, in the order in which the help shows them. Of one with `off` neither is said by default.
START = (
    Option("--socket", "PATH", "The daemon's socket; else LEEWARD_SOCKET, else the default."),
    Option("--debug", "", "A shell in place of the agent, in the same sandbox."),
    Option("--overlay", "", "Work on a copy: show what has changed at the end, and ask."),
    Option("--apply", "", "With --overlay: don't ask at the end.", off=True, parameter="applied"),
    Option("--approved", "", "Work on a copy in the profile `approved`: a person decides what leaves it, by `leeward"
                             " approvals`."),
    Option("--profile", "NAME", "Another profile than `agent`, based on it."),
    Option("--rebuild", "", "Fetch and unpack the packages of `dependencies` anew."),
    Option("--unrestricted-network", "", "Allow all public hosts, in place of the agent's own."),
    Option("--dump-network-access", "FILE", "Write the names that were allowed and denied to FILE."),
    Option("--library", "PATH[:MOUNT][:rw]", "A further folder of the host, to be read unless :rw says otherwise.",
           many=True, parameter="libraries"),
    Option("--egress", "NAME", "The daemon's policy that bounds it.  [default: agent]"),
    Option("--trust-project", "", "Accept the grants that the project's own settings ask for."),
    Option("--timeout", "SECONDS", "End it after this time.", kind=float),
    Option("--memory", "SIZE", "Memory of the whole sandbox, such as 8G."),
    Option("--terminal", "", "Give it a terminal.  [default: where standard input and output are one]", off=True),
    Option("--raw", "", "Without a terminal inside: don't escape control characters."),
)

#: What is None where it isn't given; a word is "" then.
NONE = ("socket", "dump_network_access", "timeout")


def split_arguments(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """
    The words of leeward's own, and behind the first `--` those of the agent.
    """
    if "--" not in argv:
        return list(argv), []
    place = list(argv).index("--")
    return list(argv[:place]), list(argv[place + 1:])


def parse_start(argv: Sequence[str]) -> dict[str, Any] | None:
    """
    The parameters of `agent_start.start` in *argv*, what follows `leeward agent start`; None for whatever click has to
    say something about.
    """
    before, arguments = split_arguments(argv)
    found: dict[str, Any] = {
        option.parameter: () if option.many else None if option.off or option.parameter in NONE else
        "" if option.value else False for option in START}
    known = {option.name: (option, True) for option in START}
    known |= {f"--no-{option.name[2:]}": (option, False) for option in START if option.off}
    words: list[str] = []
    before.reverse()
    while before:
        word = before.pop()
        if not word.startswith("-") or word == "-":
            words.append(word)
            continue
        name, equals, value = word.partition("=")
        option, on = known.get(name, (None, False))
        if option is None or (bool(equals) and not option.value):
            return None
        if not option.value:
            found[option.parameter] = on
            continue
        if not equals and not before:
            return None
        value = value if equals else before.pop()
        given = _value(option, value)
        if given is None:
            return None
        found[option.parameter] = (*found[option.parameter], given) if option.many else given
    if not words:
        return None
    return {**found, "name": words[0], "path": words[1] if len(words) > 1 else ".",
            "arguments": (*words[2:], *arguments)}


def _value(option: Option, value: str) -> str | float | None:
    """
    None where it is none of the option's.
    """
    if option.kind is not float:
        return value
    try:
        number = float(value)
    except ValueError:
        return None
    return number if number > 0 else None
