"""
`./dev vm`: boots a kernel, runs tests in it, ends as they end.

Runs in:   the host.

    ./dev vm --kernel 6.12                              the short form, as root
    ./dev vm --kernel 6.1 --user --systemd              as a user whom systemd delegates a group
    ./dev vm --kernel 5.10 --user -- tests/escapes      the tests that are named, with pytest's options if any
    ./dev vm --all --record                             every row, and what it found into docs/
    ./dev vm --fetch 6.1 6.12                           the kernels into .venv-vm, and nothing else
    ./dev vm --check                                    whether a release can rely on what is recorded; boots nothing

Anybody may: root of the guest has what who calls this can read (share.py).

The exit status is pytest's; 124 where the guest was turned off for taking too long, 125 where it died, 77
where this machine can't run it.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import BinaryIO

from kit.features import ROOT
from vm import kernels, machine, matrix, report, rows, table
from vm.kernels import KERNELS, Unavailable
from vm.rows import Row

#: As automake has it for a test that can't be run.
CANT = 77


def main(arguments: Sequence[str]) -> int:
    """
    Returns:
        The exit status.
    """
    asked, pytest = _parsed(arguments)
    if asked.check:
        lines = report.not_for_release(report.recorded(), report.changed_since)
        print(*lines, sep="\n", end="\n" if lines else "")
        return 1 if lines else 0
    wanted = _wanted(asked, pytest)
    try:
        if asked.fetch is not None:
            for name in asked.fetch:
                print(f"{name}: {kernels.get(KERNELS[name]).release}", flush=True)
            return 0
        worst = _run_all(wanted, asked) if asked.all else _run(
            Row(asked.kernel, asked.user, asked.systemd), wanted, asked, sys.stdout.buffer)
        if asked.record:
            table.PAGE.write_text(table.made())
        return worst
    except Unavailable as missing:
        print(f"vm: {missing}", file=sys.stderr)
        return CANT


def _parsed(arguments: Sequence[str]) -> tuple[argparse.Namespace, Sequence[str]]:
    """Ours, and after -- pytest's."""
    ours = list(arguments)
    theirs: list[str] = []
    if "--" in ours:
        at = ours.index("--")
        ours, theirs = ours[:at], ours[at + 1:]
        theirs = theirs[1:] if ["pytest"] == theirs[:1] else theirs
    parser = argparse.ArgumentParser(prog="./dev vm", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", choices=KERNELS, default="6.12")
    parser.add_argument("--user", action="store_true", help="as an ordinary user; else as root")
    parser.add_argument("--systemd", action="store_true", help="in a group that systemd delegates")
    parser.add_argument("--all", action="store_true", help="every kernel, every way")
    parser.add_argument("--beside", type=int, default=min(4, len(os.sched_getaffinity(0))), metavar="ROWS",
                        help="of --all so many at once; each wants a processor and 2 GiB (%(default)s)")
    parser.add_argument("--core", action="store_true", help="the few tests that CI runs there")
    parser.add_argument("--record", action="store_true", help="keep what was found, and write docs/kernel.md's table")
    parser.add_argument("--append", default="", metavar="WORDS", help="to the kernel's command line: lsm=lockdown")
    parser.add_argument("--seconds", type=float, default=1800.0, help="of each guest, at most")
    parser.add_argument("--fetch", nargs="*", choices=KERNELS, metavar="KERNEL")
    parser.add_argument("--check", action="store_true", help="list the recorded runs that a release can't rely on")
    asked = parser.parse_args(ours)
    # Else a line of the table would say of a few tests that they passed, next to one that says it of all.
    if asked.record and (asked.core or _names_tests(theirs)):
        parser.error("--record keeps what the short form finds: without --core, and without tests")
    return asked, theirs


def _names_tests(pytest: Sequence[str]) -> bool:
    return any((ROOT / each.partition("::")[0]).exists() for each in pytest if each)


def _wanted(asked: argparse.Namespace, pytest: Sequence[str]) -> Sequence[str]:
    # Options alone name no tests; without any pytest would run all there are, for hours.
    return pytest if _names_tests(pytest) else (*pytest, *(rows.CORE if asked.core else rows.SHORT))


def _run_all(wanted: Sequence[str], asked: argparse.Namespace) -> int:
    """Every row, some beside each other: what one says is shown once it is over. Returns the worst status."""
    for kernel in KERNELS.values():
        kernels.get(kernel)  # no two rows fetch the same one
    with ThreadPoolExecutor(asked.beside) as threads:
        try:
            return max(threads.map(partial(_run_aside, wanted, asked), rows.ALL))
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            machine.turn_off_all()
            raise


def _run_aside(wanted: Sequence[str], asked: argparse.Namespace, row: Row) -> int:
    said = io.BytesIO()
    status = _run(row, wanted, asked, said)
    sys.stdout.buffer.write(f"vm: {row.kernel}, {row.way}, has said\n".encode() + said.getvalue())
    sys.stdout.buffer.flush()
    return status


def _run(row: Row, wanted: Sequence[str], asked: argparse.Namespace, out: BinaryIO) -> int:
    print(f"vm: {row.kernel}, {row.way}", file=sys.stderr, flush=True)
    ran = matrix.run(row, wanted, out, seconds=asked.seconds, append=asked.append)
    if asked.record and ran.report is not None:
        print(f"vm: recorded in {report.record(ran.report)}", file=sys.stderr)
    return ran.status


signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))  # not without cleaning up
sys.exit(main(sys.argv[1:]))
