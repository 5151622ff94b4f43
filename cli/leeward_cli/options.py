"""
The options of `exec`, `run`, `ping` and `status`: one table, one small parser.

Runs in:   the CLI. Not click's: importing click takes longer than a whole `leeward exec`.
           The help texts are shown by click, from this table.
"""

from __future__ import annotations

TYPE_CHECKING = False  # see leeward/wire/frames.py
if TYPE_CHECKING:
    from collections.abc import Sequence


class UsageError(Exception):
    """
    The command line makes no sense; exit status 2.
    """


class Option:
    """
    One option.

    Args:
        name: as it is typed.
        value: what its value is called in help, "" for a flag.
        many: it may be given more than once.
    """

    __slots__ = ("help", "many", "name", "value")

    def __init__(self, name: str, value: str, text: str, many: bool = False) -> None:
        self.name, self.value, self.help, self.many = name, value, text, many


SOCKET = Option("--socket", "PATH", "The daemon's socket; else LEEWARD_SOCKET, else the default.")
JSON = Option("--json", "", "Print one JSON object.")

#: What a job can be given, with a daemon or without.
JOB = (
    Option("--file", "PATH", "Run this file."),
    Option("-m", "MODULE", "Run this module, as python -m does."),
    Option("--timeout", "S", "Seconds that the job may run."),
    Option("--memory", "SIZE", "Memory that the job may use: 64M, 1G, 512MiB, or bytes."),
    Option("--env", "K=V", "Set a variable in the job's environment; may be repeated.", many=True),
    Option("--stdin", "", "Give this command's standard input to the job; else the job's is empty."),
    Option("--json", "", "Print the whole result as one JSON object."),
    Option("--raw", "", "Send control characters to a terminal as they are; else they are shown escaped."),
)

OPTIONS: dict[str, tuple[Option, ...]] = {
    "exec": (*JOB, SOCKET),
    "run": (
        *JOB,
        Option("--config", "FILE", "Read this configuration as well."),
        Option("--allow-degraded", "LAYER", "Go without landlock or cgroup, if it can't be set.", many=True),
    ),
    "ping": (SOCKET,),
    "status": (JSON, SOCKET),
}

USAGE = {
    "exec": "leeward exec [OPTIONS] (CODE | - | --file PATH | -m MODULE) [-- ARGS...]",
    "run": "leeward run [OPTIONS] (CODE | - | --file PATH | -m MODULE) [-- ARGS...]",
    "ping": "leeward ping [--socket PATH]",
    "status": "leeward status [--json] [--socket PATH]",
}


class Parsed:
    """
    A command line, taken apart: flags and values by option, words, and what follows `--`.
    """

    __slots__ = ("_values", "after", "words")

    def __init__(self, values: dict[str, list[str]], words: list[str], after: list[str]) -> None:
        self._values, self.words, self.after = values, words, after

    def flag(self, name: str) -> bool:
        return name in self._values

    def value(self, name: str) -> str | None:
        values = self._values.get(name)
        return values[0] if values else None

    def values(self, name: str) -> list[str]:
        return self._values.get(name, [])


def parse(command: str, argv: Sequence[str]) -> Parsed:
    """
    Take *argv*, without the command itself, apart.

    Raises:
        UsageError: an option is unknown, lacks its value, has one too many, or is repeated.
    """
    known = {option.name: option for option in OPTIONS[command]}
    values: dict[str, list[str]] = {}
    words: list[str] = []
    rest = list(argv)
    after: list[str] = []
    if "--" in rest:
        split = rest.index("--")
        # A value may be "--" as well: `--file --`. Nobody's file is called that.
        rest, after = rest[:split], rest[split + 1:]
    rest.reverse()
    while rest:
        word = rest.pop()
        if not word.startswith("-") or word == "-":
            words.append(word)
            continue
        name, equals, value = word.partition("=")
        option = known.get(name)
        if option is None:
            raise UsageError(f"{command} has no option {name!a}")
        if option.name in values and not option.many:
            raise UsageError(f"{name} is given twice")
        if not option.value:
            if equals:
                raise UsageError(f"{name} takes no value")
        elif not equals:
            if not rest:
                raise UsageError(f"{name} needs a value, {option.value}")
            value = rest.pop()
        values.setdefault(name, []).append(value)
    return Parsed(values, words, after)
