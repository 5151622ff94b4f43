"""
The options of `exec`, `run`, `ping`, `status` and of the commands that start a daemon, and their parser.

It doesn't use click, whose import takes longer than a whole `leeward exec` and a third of a daemon's imports.
`leeward_cli.click_options` prints the help from this table, and `./dev generate` makes `leeward/clients/c/command/options.h`
of it. tests/unit/cli/test_option_tables.py compares it with the configuration's keys and the clients' options.
"""

from __future__ import annotations

from leeward.errors import quoted
from leeward.spec.sizes import parse_size

TYPE_CHECKING = False  # see leeward/wire/frames.py
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    #: A function that reads a value, or the accepted words.
    Kind = Callable[[str], Any] | tuple[str, ...]


class UsageError(Exception):
    """A mistake in the command line. The exit status is 2."""


# Kinds of values. Each function reads one, or raises a ValueError. `clients/c/command/line.c` reads them as well, under
# the same names in capitals: what it can't read, and every mistake, it leaves to these.


def flag(_text: str) -> bool:
    return True


def text(value: str) -> str:
    return value


def path(value: str) -> str:
    return value


def module(value: str) -> str:
    if value[:1].isdigit():
        raise ValueError(f"{quoted(value)} is no module's name; a limit of memory is --memory {value}")
    return value


def seconds(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 < number < float("inf"):
        raise ValueError(f"{quoted(value)} is not a number of seconds above 0")
    return number


def size(value: str) -> int:
    return parse_size(value)


def setting(value: str) -> tuple[str, str]:
    name, equals, rest = value.partition("=")
    if not name or not equals:
        raise ValueError(f"{quoted(value)} is not of the form K=V")
    return name, rest


def number(value: str) -> int:
    if not (value.isascii() and value.isdecimal() and len(value) <= 20):
        raise ValueError(f"{quoted(value)} is not a whole number")
    return int(value)


def count(value: str) -> int:
    if not number(value):
        raise ValueError(f"{quoted(value)} is not a whole number above 0")
    return number(value)


def layer(value: str) -> str:
    if value != "landlock":
        from leeward.daemon.config_keys import degradable  # here, since it is needed only for the error

        try:
            degradable(value)
        except ValueError as error:
            raise ValueError(f"{error}, not {quoted(value)}") from None
    return value


class Option:
    """
    One option.

    Args:
        value: the name of its value in the help; "" for a flag, or if the help lists the choices.
        about: the help text; "" if help doesn't show the option.
        kind: by default `text`, or `flag` if *value* is "".
        off: for a flag: whether `--no-NAME` exists, too.
        in_c: whether the C command reads it as well.
        parameter: the name of the parameter, and of the field in C; by default the option's name with "_".
    """

    __slots__ = ("help", "in_c", "kind", "many", "name", "off", "parameter", "short", "value")

    def __init__(self, name: str, value: str, about: str, many: bool = False, *, kind: Kind | None = None,
                 short: str = "", off: bool = False, in_c: bool = False, parameter: str = "") -> None:
        self.name, self.value, self.help, self.many, self.off, self.in_c = name, value, about, many, off, in_c
        self.kind: Kind = kind or (text if value else flag)
        self.short = short
        self.parameter = parameter or name.lstrip("-").replace("-", "_")

    def read(self, value: str) -> Any:
        """What *value* stands for; UsageError if the option doesn't take it."""
        if isinstance(self.kind, tuple):
            if value not in self.kind:
                raise UsageError(f"{self.name}: {quoted(value)} is not one of {', '.join(self.kind)}")
            return value
        try:
            return self.kind(value)
        except ValueError as error:
            raise UsageError(f"{self.name}: {error}") from None


SOCKET = Option("--socket", "PATH", "The daemon's socket, or the URL of a host; else LEEWARD_HOST, LEEWARD_SOCKET, the"
                                    " configuration's, or the default.", kind=path, short="-s", in_c=True)
CONFIG = Option("--config", "FILE", "Read this configuration as well.", parameter="config_file")
ALLOW_DEGRADED = Option("--allow-degraded", "LAYER", "Start even if the kernel lacks this layer: landlock.", many=True,
                        kind=layer)

#: The options of a job, with a daemon or without.
JOB = (
    Option("--file", "PATH", "Run this file.", kind=path, in_c=True),
    Option("-m", "MODULE", "Run this module, as python -m does.", kind=module, in_c=True, parameter="module"),
    Option("--timeout", "S", "Seconds that the job may run.", kind=seconds, short="-t", in_c=True),
    Option("--wall", "S", "Seconds that it may run in all, if --timeout is to count none for which it had no processor.",
           kind=seconds),
    Option("--cpu-time", "S", "Seconds of processor time that its processes may use.", kind=seconds),
    Option("--memory", "SIZE", "Memory that the job may use: 64M, 1G, 512MiB, or bytes.", kind=size, in_c=True),
    Option("--processes", "N", "Processes and threads that the job may have at once.", kind=count),
    Option("--descriptors", "N", "Open descriptors that each process may have.", kind=count),
    Option("--files", "SIZE", "Files that a live sandbox, as of --profile, may have; they count as memory.", kind=size),
    Option("--output", "SIZE", "Bytes that the job may write to stdout and stderr together.", kind=size),
    Option("--put", "HOST[:INSIDE]", "Give the job a copy of this file or folder, below /workspace under its own name"
                                     " or INSIDE; may be repeated.", many=True),
    Option("--collect", "PATTERN", "Bring the job's files that match back into the current folder, where no file of"
                                   " that name is; may be repeated.", many=True),
    Option("--into", "FOLDER", "With --collect: put them into this folder, and replace files there."),
    Option("--env", "K=V", "Set a variable in the job's environment; may be repeated.", many=True, kind=setting,
           in_c=True),
    Option("--label", "NAME", "Your own name for the job, for the daemon's log and --json.", in_c=True),
    Option("--stdin", "", "Give this command's standard input to the job; else the job's is empty.", in_c=True,
           parameter="from_stdin"),
    Option("--json", "", "Print the whole result as one JSON object."),
    Option("--raw", "", "Send control characters to a terminal as they are; else they are shown escaped.", in_c=True),
)

#: The options of a daemon's start. Each except --config sets the configuration key of the same name.
DAEMON = (
    Option("--pool-size", "N", "Workers that are kept ready, each of which runs one job at a time.  [default: 4]",
           kind=number),
    Option("--max-jobs", "N", "Jobs at once, by further workers while more wait; else as many as memory and processors"
                              " carry.", kind=number),
    Option("--socket", "PATH", "Listen here; else LEEWARD_SOCKET, else the configuration's, else the default.",
           kind=path, short="-s"),
    CONFIG,
    Option("--group", "NAME", "Let this group's members in as well, within their quotas."),
    ALLOW_DEGRADED,
    Option("--log-level", "", "Log events from this level on.  [default: info]",
           kind=("debug", "info", "warning", "error")),
    Option("--log-json", "", "Log JSON objects."),
    Option("--io", "", "Use io_uring, or plain socket calls over epoll.  [default: auto]",
           kind=("auto", "uring", "socket")),
    Option("--spares", "N", "Spare processes of each worker, ready in addition to the one for the next job. Each saves"
                            " a job of a burst the wait for a new process, and takes memory.  [default: 1]", kind=number),
    Option("--reuse", "", "Give jobs of a connection the namespaces of ones before, while more wait.  [default: off]",
           kind=("off", "user")),
    Option("--fresh-layout", "", "Start an interpreter for each job, so that no two share an address layout or a hash"
                                 " seed; each job then costs the start of one.  [default: off]", off=True),
    Option("--fast-path", "", "Handle short jobs in C, in about half the time.  [default: on]", off=True),
    Option("--results", "", "Send output in the answer or by a memory file.  [default: auto]",
           kind=("auto", "inline", "memfd")),
    Option("--idle-exit", "S", "End after this many seconds without a request, a job or a session; 0 is never."
                               "  [default: 0]", kind=number),
    Option("--rehearse", "", "Run a small job in each new process before its real one, which then starts faster; making"
                             " the process costs more processor time.  [default: on]", off=True),
)

OPTIONS: dict[str, tuple[Option, ...]] = {
    "exec": (
        *JOB,
        Option("--environment", "NAME", "An interpreter with its packages, one of those that the daemon's configuration"
                                        " names."),
        Option("--package", "REQUIREMENT", "Packages of pip's, such as 'pandas==2.2', in place of an environment; may"
                                           " be repeated.", many=True),
        Option("--egress", "NAME", "The policy of egress, one of those that the daemon's configuration names; without"
                                   " one the job reaches nothing."),
        Option("--network", "", "The job may reach all public names and addresses, where the operator lets it."),
        Option("--profile", "NAME", "Run the code in a sandbox of this kind, or, without code, one shell line, given"
                                    " after --: see `leeward profiles`."),
        Option("--image", "NAME", "Run one line, given after --, on the root file system of this image: see `leeward"
                                  " image`."),
        Option("--user", "USER", "With --image: who runs there, a name of the image's or a number."),
        Option("--show-secrets", "", "With --profile shell: hide nothing."),
        SOCKET,
    ),
    "run": (*JOB, CONFIG, ALLOW_DEGRADED),
    "ping": (SOCKET,),
    "status": (Option("--json", "", "Print one JSON object."), SOCKET),
    "daemon run": (
        *DAEMON,
        Option("--print-config", "", "Print the configuration, with every key's default and unit."),
        Option("--ready-fd", "N", "", kind=number),  # of `daemon start`: become a background process when ready
    ),
    "daemon start": DAEMON,
    "daemon restart": (*DAEMON, Option("--now", "", "End running jobs at once.")),
}

USAGE = {
    "exec": "leeward exec [OPTIONS] (CODE | - | --file PATH | -m MODULE | --profile NAME) [-- ARGS...]",
    "run": "leeward run [OPTIONS] (CODE | - | --file PATH | -m MODULE) [-- ARGS...]",
    "ping": "leeward ping [--socket PATH]",
    "status": "leeward status [--json] [--socket PATH]",
    **{command: f"leeward {command} [OPTIONS]" for command in ("daemon run", "daemon start", "daemon restart")},
}


class Parsed:
    """A parsed command line: flags and values by option, words, and the words after `--`."""

    __slots__ = ("_options", "_values", "after", "words")

    def __init__(self, options: Sequence[Option], values: dict[str, list[Any]], words: list[str],
                 after: list[str]) -> None:
        self._options, self._values, self.words, self.after = options, values, words, after

    def flag(self, name: str) -> bool:
        return name in self._values

    def value(self, name: str) -> Any:
        values = self._values.get(name)
        return values[0] if values else None

    def values(self, name: str) -> list[Any]:
        return self._values.get(name, [])

    def parameters(self) -> dict[str, Any]:
        """The values of all options by their parameters' names: a tuple for one that may be repeated, None if not given."""
        return {option.parameter: tuple(self.values(option.name)) if option.many else self.value(option.name)
                for option in self._options}


def parse(command: str, argv: Sequence[str]) -> Parsed:
    """Parse *argv*, the words after the command. Of a daemon's options that are repeated the last one counts."""
    options = OPTIONS[command]
    known = {name: option for option in options for name in (option.name, option.short) if name}
    off = {f"--no-{option.name[2:]}": option for option in options if option.off}
    values: dict[str, list[Any]] = {}
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
        option = known.get(name) or off.get(name)
        if option is None:
            raise UsageError(_unknown(command, name, [*known, *off], bool(words)))
        if option.name in values and not option.many:
            if not command.startswith("daemon"):
                raise UsageError(f"{name} is given twice")
            del values[option.name]
        if option.kind is flag:
            if equals:
                raise UsageError(f"{name} takes no value")
            values[option.name] = [name in known]
            continue
        if not equals:
            if not rest:
                wanted = " or ".join(option.kind) if isinstance(option.kind, tuple) else option.value
                raise UsageError(f"{name} needs a value, {wanted}")
            value = rest.pop()
        values.setdefault(option.name, []).append(option.read(value))
    if command not in ("exec", "run") and (words or after):
        raise UsageError(f"{command} takes no arguments, not {quoted((words + after)[0])}")
    return Parsed(options, values, words, after)


def _unknown(command: str, name: str, known: list[str], behind: bool) -> str:
    """The message about an option that isn't known, *behind* another word or not, with the one that was meant."""
    import difflib  # here, since it is needed only for the error

    if command.startswith("daemon"):
        from leeward.daemon.config_keys import RENAMED  # likewise

        no = "no-" if name.startswith("--no-") else ""
        new = RENAMED.get(name[len(f"--{no}"):].replace("-", "_"))
        if new is not None:
            return f"{name} is called --{no}{new.replace('_', '-')} now"
    if name == "-c" and command in ("exec", "run") and not behind:
        return f"the code is an argument of its own: leeward {command} 'print(1)'"
    meant = difflib.get_close_matches(name, known, 1)
    hint = f"; did you mean {meant[0]}?" if meant else "; the program's own follow --" if behind else ""
    return f"{command} has no option {quoted(name)}{hint}"
