"""
The gain by the snapshot, and by the pages that the clone copies, under each configuration: one row for each.

    .venv/bin/python bench/configurations.py [--rounds R] [--jobs N] [--user NAME --user-python FILE]
        [--interpreter NAME=FILE]... [--environment NAME=FOLDER[,MODULE...]]... [--only NAME]... [--json]
    .venv/bin/python bench/configurations.py --guest KERNEL [OPTION]...

Needs root, perf(1) with tracepoints, and version 2's hierarchy, with or without controllers. A row compares this tree
as it is with a copy of it in which both switches (docs/decisions 0134, 0145) are off: processor_pairs.py says how the
times are taken, counts.py how the page faults and system calls of a runner are.

The configurations: root, with the host's hierarchies of groups; root, in a mount namespace without any hierarchy of
groups, and so without controllers; if --user is given, the ordinary user NAME, with an interpreter that has leeward's
requirements and that every user can run; for each --interpreter, which has the requirements as well, a daemon and jobs
on it; and for each --environment a daemon whose jobs run in it, with these modules imported beforehand.

--guest does the same in a virtual machine with a kernel of `./dev vm`, whose groups are version 2's. Processor times of
an emulated machine mean nothing, so there are no rounds, and only the counts are printed.

To count the workers' time where leeward has no groups, each daemon is put into a group of this script's, less what
daemon, zygote and client used by their own clocks.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pwd
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import counts
from bench.processor_pairs import Side, compared, turns
from leeward_cli.bench.rounds import CALLERS
from leeward_cli.bench.spent import unified

_TREE = Path(__file__).resolve().parents[1]

#: Each switch: its file, and the line that is on.
_SWITCHES = {"leeward/crossing/snapshot.py": "TAKE = True", "leeward/crossing/keeper.py": "COPY_BY_CLONE = True"}

#: Seconds that the processes of a daemon have to vanish.
_VANISH_S = 5.0

#: Seconds and MiB of a guest.
_GUEST_S, _GUEST_MIB = 1200.0, 2048

#: Unmounts every hierarchy, the last one mounted first, and becomes the rest of the arguments.
_NO_GROUPS = ('for place in $(awk \'$0 ~ / - cgroup2? / {print $5}\' /proc/self/mountinfo | tac); do umount "$place"; '
              'done; exec "$@"')


@dataclass(frozen=True)
class Configuration:
    """
    Attributes:
        before: the words of the command before the interpreter.
        options: the options of the daemon.
    """

    name: str
    before: tuple[str, ...] = ()
    python: str = sys.executable
    options: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


def environment(told: str, place: Path) -> Configuration:
    """Return the configuration of NAME=FOLDER,MODULE,... with its file at *place*."""
    name, _, rest = told.partition("=")
    folder, *modules = rest.split(",")
    place.write_text(f"python_env = {json.dumps(folder)}\npreload = {json.dumps(modules)}\n")
    return Configuration(name, options=("--config", str(place)))


def ordinary(name: str, python: str, home: str) -> Configuration:
    user = pwd.getpwnam(name)
    return Configuration(
        "an ordinary user", ("setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"), python,
        env={"HOME": home, "USER": name, "LOGNAME": name})


@contextlib.contextmanager
def trees() -> Iterator[tuple[Path, Path]]:
    """
    Two copies of this tree that everybody can read: with both switches off, and as it is.

    Raises:
        SystemExit: a file has no such line for a switch any more.
    """
    with tempfile.TemporaryDirectory(prefix="leeward-bench.") as folder:
        Path(folder).chmod(0o755)
        off, on = Path(folder, "off"), Path(folder, "on")
        for copy in (off, on):
            for part in ("leeward", "cli"):
                shutil.copytree(_TREE / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        for name, line in _SWITCHES.items():
            text = (off / name).read_text()
            if f"\n{line}\n" not in text:
                raise SystemExit(f"{name} has no line {line!r}")
            (off / name).write_text(text.replace(f"\n{line}\n", f"\n{line.replace('True', 'False')}\n"))
        yield off, on


@contextlib.contextmanager
def side(configuration: Configuration, tree: Path) -> Iterator[Side]:
    """Start a daemon of *tree*, in a group of its own."""
    mount = unified(Path("/proc/self/mountinfo").read_text())
    if mount is None:
        raise SystemExit("there is no version 2 of groups here")
    group = Path(mount, f"leeward-bench-{tree.name}-{os.getpid()}")
    group.mkdir()
    compiler = [configuration.python, "-m", "compileall", "-q", str(tree)]
    subprocess.run(compiler, check=True)  # an ordinary user can't leave bytecode there
    start = ["sh", "-c", f'echo $$ >{shlex.quote(str(group))}/cgroup.procs; exec "$@"', "sh", *configuration.before,
             configuration.python]
    usual = {key: value for key, value in os.environ.items() if not key.startswith("LEEWARD_")}
    with contextlib.ExitStack() as stack:
        stack.callback(_remove, group)
        daemon = Side(start, CALLERS, configuration.options, {
            **usual, **configuration.env, "PYTHONPATH": f"{tree}:{tree / 'cli'}"}, group)
        stack.callback(daemon.close)
        yield daemon


def _remove(group: Path) -> None:
    """Remove a group and the groups below it when they are empty: a daemon's processes end a moment after the daemon."""
    until = time.monotonic() + _VANISH_S
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            for folder, _, _ in os.walk(group, topdown=False):
                os.rmdir(folder)
            return
        time.sleep(0.1)


def counted(daemon: Side, jobs: int) -> dict[str, float]:
    """Return the page faults and system calls of runners, per job."""
    found = counts.measured(daemon, jobs)
    return {kind: found[kind].get("runner", 0.0) for kind in ("faults", "calls")}


def row(configuration: Configuration, rounds: int, jobs: int) -> dict[str, Any]:
    """Return the row of one configuration: ratios by `compared`, and the counts of either side."""
    with trees() as (off, on), side(configuration, off) as one, side(configuration, on) as other:
        ratios = {str(each["part"]): each for each in compared(turns(one, other, rounds, jobs))}
        return {"configuration": configuration.name, "ratios": ratios,
                "off": counted(one, jobs), "on": counted(other, jobs)}


def text(found: Mapping[str, Any]) -> str:
    """Return a line of the table in docs/measurements."""
    cells = [found["configuration"]]
    for part in ("daemon", "workers", "both"):
        each = found["ratios"].get(part)
        span = " to ".join(f"{end:.2f}" for end in each["interval"]) if each else ""
        cells.append("" if each is None else f"{each['ratio']:.2f}, *{span}*" if span else f"{each['ratio']:.2f}")
    for kind in ("faults", "calls"):
        before, after = (found[which][kind] for which in ("off", "on"))
        cells.append(f"{before:.0f}, {after:.0f}")
    return f"| {' | '.join(cells)} |"


def configurations(options: argparse.Namespace, folder: str, home: str) -> Sequence[Configuration]:
    found = [
        Configuration("root"),
        Configuration("root, without controllers",
                      ("unshare", "--mount", "--propagation=private", "sh", "-c", _NO_GROUPS, "sh")),
        *([ordinary(options.user, options.user_python, home)] if options.user else []),
        *(Configuration(name, python=file) for name, _, file in (told.partition("=") for told in options.interpreter)),
        *(environment(told, Path(folder, f"{number}.toml")) for number, told in enumerate(options.environment)),
    ]
    return [each for each in found if not options.only or each.name in options.only]


def in_guest(kernel: str, options: Sequence[str]) -> int:
    """Run this script with *options* in a guest."""
    sys.path.insert(0, str(_TREE / "tests"))
    from vm import kernels, machine
    from vm.kernels import KERNELS
    from vm.machine import Boot

    own = [sys.executable, "-P", __file__, "--rounds=0", *options]
    environment = {"PYTHONPATH": f"{_TREE}:{_TREE / 'cli'}", "HOME": "/tmp"}
    ended = machine.run(Boot(kernels.get(KERNELS[kernel]), f"alone {shlex.join(own)}", False, False, environment,
                             _GUEST_S, _GUEST_MIB, ""), sys.stdout.buffer)
    return 1 if ended.status is None else ended.status


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=200, help="of a turn")
    parser.add_argument("--user")
    parser.add_argument("--user-python", default="/usr/bin/python3")
    parser.add_argument("--interpreter", action="append", default=[])
    parser.add_argument("--environment", action="append", default=[])
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--guest", metavar="KERNEL")
    options = parser.parse_args()
    if options.guest:
        return in_guest(options.guest, [f"--jobs={options.jobs}", *(f"--only={name}" for name in options.only)])
    with (tempfile.TemporaryDirectory(prefix="leeward-bench.") as folder,
          tempfile.TemporaryDirectory(prefix="leeward-bench.") as home):
        if options.user:
            os.chown(home, pwd.getpwnam(options.user).pw_uid, -1)
        for configuration in configurations(options, folder, home):
            found = row(configuration, options.rounds, options.jobs)
            print(json.dumps(found) if options.json else text(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
