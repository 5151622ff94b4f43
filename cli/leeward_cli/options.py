"""
The table of the options of `exec`, `run`, `ping` and `status`, and their parser. `leeward_cli.daemon` has the daemon's
options.

Runs in:   the CLI. It doesn't use click, whose import takes longer than a whole `leeward exec`.
           Click prints the help from this table.
Tests:     tests/unit/cli/test_option_tables.py compares these tables, the configuration's keys and clients' options,
           and tests/unit/client/test_c_command.py the table of the C command.
"""

from __future__ import annotations

from leeward.errors import quoted

TYPE_CHECKING = False  # see leeward/wire/frames.py
if TYPE_CHECKING:
    from collections.abc import Sequence


class UsageError(Exception):
    """A mistake in the command line. The exit status is 2."""


class Option:
    """
    One option.

    Args:
        name: the option as it is typed, such as "--json".
        value: the name of its value in the help; "" for a flag, or if the help lists the choices.
        text: the help text.
        many: whether the option may be repeated.
        kind: the type of its value: int, str, or a tuple of the accepted words; bool for an option without a value. By
            default str, or bool if *value* is "".
        off: for a bool: whether `--no-NAME` exists, too.
        parameter: the name of the parameter; by default the option's name with "_".
    """

    __slots__ = ("help", "kind", "many", "name", "off", "parameter", "value")

    def __init__(self, name: str, value: str, text: str, many: bool = False, *,
                 kind: type | tuple[str, ...] | None = None, off: bool = False, parameter: str = "") -> None:
        self.name, self.value, self.help, self.many, self.off = name, value, text, many, off
        self.kind: type | tuple[str, ...] = kind or (str if value else bool)
        self.parameter = parameter or name.lstrip("-").replace("-", "_")


SOCKET = Option("--socket", "PATH", "The daemon's socket; else LEEWARD_SOCKET, else the configuration's, else the"
                                    " default.")
ENVIRONMENT = Option("--environment", "NAME", "An interpreter with its packages, one of those that the daemon's"
                                              " configuration names.")
PACKAGE = Option("--package", "REQUIREMENT", "Packages of pip's, such as 'pandas==2.2', in place of an environment; may"
                                             " be repeated.", many=True)
EGRESS = Option("--egress", "NAME", "The policy of egress, one of those that the daemon's configuration names; without"
                                    " one the job reaches nothing.")
NETWORK = Option("--network", "", "The job may reach all public names and addresses, where the operator lets it.")
PROFILE = Option("--profile", "NAME", "Run the code in a sandbox of this kind, or, without code, one shell line,"
                                      " given after --: see `leeward profiles`.")
SHOW_SECRETS = Option("--show-secrets", "", "With --profile shell: hide nothing.")
JSON = Option("--json", "", "Print one JSON object.")

#: The options of a job, with a daemon or without.
JOB = (
    Option("--file", "PATH", "Run this file."),
    Option("-m", "MODULE", "Run this module, as python -m does."),
    Option("--timeout", "S", "Seconds that the job may run."),
    Option("--memory", "SIZE", "Memory that the job may use: 64M, 1G, 512MiB, or bytes."),
    Option("--processes", "N", "Processes and threads that the job may have at once."),
    Option("--output", "SIZE", "Bytes that the job may write to stdout and stderr together."),
    Option("--put", "HOST[:INSIDE]", "Give the job a copy of this file or folder, below /workspace under its own name"
                                     " or INSIDE; may be repeated.", many=True),
    Option("--collect", "PATTERN", "Bring the job's files that match back into the current folder, where no file of"
                                   " that name is; may be repeated.", many=True),
    Option("--into", "FOLDER", "With --collect: put them into this folder, and replace files there."),
    Option("--env", "K=V", "Set a variable in the job's environment; may be repeated.", many=True),
    Option("--label", "NAME", "Your own name for the job, for the daemon's log and --json."),
    Option("--stdin", "", "Give this command's standard input to the job; else the job's is empty."),
    Option("--json", "", "Print the whole result as one JSON object."),
    Option("--raw", "", "Send control characters to a terminal as they are; else they are shown escaped."),
)

OPTIONS: dict[str, tuple[Option, ...]] = {
    "exec": (*JOB, ENVIRONMENT, PACKAGE, EGRESS, NETWORK, PROFILE, SHOW_SECRETS, SOCKET),
    "run": (
        *JOB,
        Option("--config", "FILE", "Read this configuration as well."),
        Option("--allow-degraded", "LAYER", "Start even if the kernel lacks this layer: landlock.", many=True),
    ),
    "ping": (SOCKET,),
    "status": (JSON, SOCKET),
}

USAGE = {
    "exec": "leeward exec [OPTIONS] (CODE | - | --file PATH | -m MODULE | --profile NAME) [-- ARGS...]",
    "run": "leeward run [OPTIONS] (CODE | - | --file PATH | -m MODULE) [-- ARGS...]",
    "ping": "leeward ping [--socket PATH]",
    "status": "leeward status [--json] [--socket PATH]",
}


class Parsed:
    """A parsed command line: flags and values by option, words, and the words after `--`."""

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
    Parse *argv*, the words after the command.

    Raises:
        UsageError: an option is unknown, lacks its value, has a value that it doesn't take, or is repeated.
    """
    known = {option.name: option for option in OPTIONS[command]}
    values: dict[str, list[str]] = {}
    words: list[str] = []
    rest = list(argv)
    after: list[str] = []
    if "--" in rest:
        split = rest.index("--")
        # "--" could also be a value, as in `--file --`; that isn't supported.
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
            import difflib  # here, since it is needed only for the error

            meant = difflib.get_close_matches(name, known, 1)
            raise UsageError(f"{command} has no option {quoted(name)}{f'; did you mean {meant[0]}?' if meant else ''}")
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
