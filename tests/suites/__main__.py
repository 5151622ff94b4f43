"""
Test suites of other people's programs, whole and by command: what passes outside has to pass inside.

    ./dev suites [--part N/M|PREFIX] [--folder FOLDER] [--only UNIT]... [--again] SUITE...
    SUITE: cpython-3.11 cpython-3.13 git sqlite coreutils node

Runs in:   a developer's shell, as root; hours for all of them, so --part takes each Mth unit, from the Nth on, or those
           whose names begin so. CPython's are the modules of `test` that the interpreter ships, by functions of
           test_cpython_suite.py; one of another version is one of pyenv's. The others are Debian's sources of this release,
           built outside; of node, Debian's binary. With --again those of the others that agreed last time don't run: what is
           left of a part that was stopped, and what differed.
Inside:    a sandbox as of the profile `workdir` with a copy of the tree; CPython's in jobs with a loopback.
Outside:   an ordinary user, in another copy; but for CPython's only the units that fail inside.
Result:    a line for each unit that differs, with what fails inside alone, twice, and no row of reasons.py has (the folder's
           SUITE.differ.log has all of it); and one for all; 1 if any differs. With LEEWARD_RECORD=1 docs/runs has what a
           part found, for the table in docs/frameworks.md.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import leeward
from integration import test_cpython_suite as cpython
from kit import runs
from kit.live_daemon import LiveDaemon
from suites.reasons import reason

#: Seconds for one unit, and the user outside.
UNIT_S, USER = 600, "65534"
#: Of the sandboxes.
CONFIG = """\
sandbox_idle = 86400
sandbox_lifetime = 86400
"""
#: Behind what else is configured.
PROFILE = f"""
[ceilings]
processes = 1024
[profiles.suites]
base = "workdir"
terminal = true
[profiles.suites.limits]
memory = "4G"
files = "3G"
processes = 1024
cpu = {100 * (os.cpu_count() or 1)}
"""
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
APT = ("apt-get", "-qq", "-y", "-o", "DPkg::Lock::Timeout=300")

#: What fails, by unit and by name, with how.
Found = dict[str, dict[str, str]]
NO_RESULT = {"has no result": ""}
SKIPS = "skips itself"


@dataclass(frozen=True)
class Suite:
    """
    Attributes:
        needs: Debian's packages for the build.
        build: a line for the shell, in the tree.
        units: lists them, given the tree.
        line: runs the unit `$1`, in the tree.
        failed: a regular expression for what fails in the output, by name; a unit that ends with another status than
            0 and names nothing fails by itself.
        together: so many units of a folder run by one line, which has their names behind `$0`.
        result: for those, what tells of one: whether it fails, its name, why it is skipped, and what it said.
    """

    needs: tuple[str, ...]
    build: str
    units: Callable[[Path], list[str]]
    line: str
    failed: str = "(?!)"
    together: int = 1
    result: str = ""

    def failures(self, units: Sequence[str], status: int, output: str) -> Found:
        """What fails in each unit that ran, with how it did, as far as that is known."""
        if self.result:
            all_found: Found = {}
            for fails, name, why, how in re.findall(self.result, output, re.MULTILINE):
                failed = {f"{SKIPS}: {why}": ""} if why else {"fails": how} if fails else {}
                all_found.setdefault(name, {}).update(failed)  # .js and .mjs have one name
            return all_found
        found = set(re.findall(self.failed, output, re.MULTILINE))
        if not found and status:
            found = {f"{units[0]} ends with {status}"}
        return {units[0]: dict.fromkeys(found, "")}

    def batches(self, units: list[str]) -> Iterator[list[str]]:
        for _, folder in itertools.groupby(units, lambda unit: self.together > 1 and unit.partition("/")[0]):
            while batch := list(itertools.islice(folder, self.together)):
                yield batch


def _coreutils(tree: Path) -> list[str]:
    listed = (tree / "tests/local.mk").read_text().partition("\nall_tests =")[2].partition("\n\n")[0]
    return re.findall(r"tests/[\w/.+-]+\.(?:sh|pl|xpl)", listed)


def _node(tree: Path) -> list[str]:
    """The tests of the folders that its runner takes if it is told none."""
    without = (tree / "tools/test.py").read_text().partition("IGNORED_SUITES = [")[2].partition("]")[0]
    return sorted({f"{each.parent.name}/{each.stem}" for each in tree.glob("test/*/*.*js")
                   if (each.parent / "testcfg.py").exists() and f"'{each.parent.name}'" not in without})


SUITES = {
    # git's wrappers have the path of the build.
    "git": Suite(("zlib1g-dev",), "make -j2 CFLAGS=-O0 NO_CURL=1 NO_EXPAT=1 NO_GETTEXT=1 NO_TCLTK=1 NO_OPENSSL=1 NO_PYTHON=1",
                 lambda tree: sorted(each.name for each in tree.glob("t/t[0-9]*.sh")),
                 """test -e moved || sed -i "s#[^ ='\\"]*/git-new/git-[0-9.]*#$PWD#g" bin-wrappers/* GIT-BUILD-OPTIONS
                 : >moved; cd t && exec "./$1\"""", r"^not ok \d+ - (?!.*# TODO)(.*)$"),
    "sqlite": Suite(("tcl8.6-dev",), "./configure -q --with-tcl=/usr/lib/tcl8.6 && make -j2 testfixture",
                    lambda tree: sorted(each.name for each in tree.glob("test/*.test")
                                        if not re.match(r"all|extraquick|full|memdb|permut|quick|soak|veryquick|valgrind",
                                                        each.name)),
                    'exec ./testfixture "test/$1"', r"^! (\S+) expected"),
    "coreutils": Suite((), "FORCE_UNSAFE_CONFIGURE=1 ./configure -q --disable-nls && make -j2", _coreutils,
                       'make -s check-TESTS TESTS="$1" SUBDIRS=. >/dev/null; cat "${1%.*}.log" >&2; '
                       'exec sed -n "s/^:test-result: /result /p" "${1%.*}.trs"', r"^result ((?:FAIL|ERROR).*)$"),
    # By its own runner, with Debian's settings. Its parts that Debian has packaged are looked for in /usr/share/nodejs.
    "node": Suite(("libc-ares2", "libuv1", "libicu72", "node-acorn", "node-cjs-module-lexer", "node-undici", "patchelf"),
                  """set -e; rm -r deps/openssl/config; ln -s binaries/usr/bin/node node
                  apt-get -q download nodejs libnode108; for each in *.deb; do dpkg -x "$each" binaries; done
                  cd binaries/usr/lib/*-linux-gnu && patchelf --set-rpath "\\$ORIGIN/../lib/${PWD##*/}" ../../bin/node""",
                  _node, """for each; do names="$names|${each#*/}"; done
                  export NODE_TEST_NO_INTERNET=1 OPENSSL_CONF="$PWD/deps/openssl/openssl/apps/openssl.cnf"
                  exec python3 tools/test.py -p tap -j 4 "${1%%/*}/(${names#|})\"""", together=30,
                  result=r"^(not )?ok \d+ (\S+)(?: # skip (.*)|.*)\n((?:  .*\n)*)"),
}
#: Debian's source package, where it has another name.
SOURCES = {"sqlite": "sqlite3", "node": "nodejs"}


def source(name: str, folder: Path) -> Path:
    """The tree of Debian's source package *name*, built; made once."""
    suite, made = SUITES[name], folder / name
    if made.exists():
        return made
    work = folder / f"{name}-new"
    shutil.rmtree(work, ignore_errors=True)
    (work / "lists/partial").mkdir(parents=True)
    targets = subprocess.run(["apt-get", "indextargets", "--format", "$(SITE) $(CODENAME)",
                              "Created-By: Packages", "Origin: Debian"], capture_output=True, text=True, check=True)
    rows = {tuple(line.split()) for line in targets.stdout.splitlines()}
    (work / "sources.list").write_text("".join(
        f"{kind} [signed-by={KEYS}] {site} {release} main\n" for site, release in rows for kind in ("deb", "deb-src")))
    (work / "apt.conf").write_text(f'Dir::Etc::SourceList "{work}/sources.list"; Dir::Etc::SourceParts "-"; '
                                   f'Dir::State::Lists "{work}/lists"; Dir::State::Status "/dev/null"; '
                                   'APT::Sandbox::User "root";')
    own = {**os.environ, "APT_CONFIG": str(work / "apt.conf")}
    subprocess.run([*APT, "install", "--no-install-recommends", "dpkg-dev", *suite.needs], check=True,
                   env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, stdin=subprocess.DEVNULL)
    subprocess.run([*APT, "update"], check=True, env=own)
    # A mirror may lack a newer release's.
    wanted = [f"{SOURCES.get(name, name)}{release}" for release in ("", *(f"/{release}" for _, release in sorted(rows)))]
    if all(subprocess.run([*APT, "source", each], cwd=work, check=False, stdout=subprocess.DEVNULL, env=own).returncode
           for each in wanted):
        sys.exit(f"{name}: there is no source")
    tree = next(each for each in work.iterdir() if each.is_dir() and each.name != "lists")
    print(f"{name}: building {tree.name}", flush=True)
    with open(folder / f"{name}.log", "wb") as log:
        subprocess.run(["sh", "-c", suite.build], cwd=tree, check=True, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                       env=own)
    (folder / f"{name}.version").write_text(tree.name.rpartition("-")[2])
    tree.rename(made)
    shutil.rmtree(work)
    return made


def part_of(units: list[str], asked: argparse.Namespace) -> list[str]:
    numbers = re.fullmatch(r"(\d+)/(\d+)", asked.part)
    if asked.only or not numbers:
        return [unit for unit in units if (unit in asked.only if asked.only else unit.startswith(asked.part))]
    return units[int(numbers[1]) - 1::int(numbers[2])]


def differs(suite: str, unit: str, failed: dict[str, str], said: str, folder: Path) -> None:
    """Print what *failed* inside alone, with how, if that is known; all of it goes to the suite's .differ.log in *folder*."""
    rows = [f"{name}{how and ': '}{' '.join(how.split())[-200:]}" for name, how in failed.items()]
    print(f"  {unit}: {len(failed)}: {'; '.join(rows)[:600]}", flush=True)
    with open(folder / f"{suite}.differ.log", "a") as log:
        log.write("\n".join((f"--- {unit}", *(f"{name}\n{how}" for name, how in failed.items()), said, "")))


def told(name: str, version: str, asked: argparse.Namespace, **found: int) -> None:
    """
    Print, and keep, what a suite's part was *found* to do.

    Args:
        found: how many *units* it has; how many fail on *both* sides, and *alone* inside; the tests *excused* by a row,
            and the units that are *skipped* outside and the *tests* that pass there, where they are counted.
    """
    print(f"{name}: {', '.join(f'{what} {count}' for what, count in found.items())}", flush=True)
    if not asked.only:
        runs.record("suites", f"{name} {asked.part}", version, **found)


def compared(name: str, asked: argparse.Namespace) -> int:
    """Run a part of a suite of Debian's; how many units fail inside alone."""
    folder = Path(asked.folder)
    suite, tree = SUITES[name], source(name, folder)
    units, version = part_of(suite.units(tree), asked), (folder / f"{name}.version").read_text()
    kept = folder / f"{name}-{version}.json"
    agree: dict[str, dict[str, int]] = json.loads(kept.read_text()) if kept.exists() else {}
    if not asked.again:
        agree = {unit: counts for unit, counts in agree.items() if unit not in units}
    left, count = [unit for unit in units if unit not in agree], Counter[str]()
    print(f"{name}: {version}, {len(left)} units of {len(units)}", flush=True)
    with _trees(tree, folder) as (there, here), _daemon() as daemon:
        def outside(batch: Sequence[str]) -> Found:
            done = subprocess.run(["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "timeout", "-k", "5",
                                   str(UNIT_S), "sh", "-c", suite.line, "sh", *batch], cwd=there, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
                                  env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(there), "TZ": "UTC"})
            return suite.failures(batch, done.returncode, done.stdout)

        def inside(batch: Sequence[str]) -> tuple[Found, str]:
            with leeward.Sandbox(socket=daemon.socket, profile="suites", workdir=str(here)) as box:
                done = box.run(["sh", "-c", f"exec 2>&1; {suite.line}", "sh", *batch], timeout=UNIT_S, output="64M",
                               overflow="cut", env={"TZ": "UTC"})
            return suite.failures(batch, done.exit_code, done.text), done.text

        for batch in suite.batches(left):
            found, text = inside(batch)
            doubtful = [unit for unit in batch if found.get(unit, NO_RESULT)]  # else nothing can differ
            expected = outside(doubtful) if doubtful else {}
            if not found and not expected:
                count["alone"] += len(batch)
                differs(name, batch[0], {"nothing ran": text}, "", folder)
                continue
            counts, differ = _sorted_out(name, batch, found, expected, text)
            again, text = inside([*differ]) if differ else ({}, "")
            for unit, names in differ.items():
                if twice := {each: how for each, how in again.get(unit, NO_RESULT).items() if each in names}:
                    count.update(counts.pop(unit), alone=1)
                    differs(name, unit, twice, "" if suite.result else text[-20000:], folder)
            agree |= counts
            kept.write_text(json.dumps(agree))
    for unit in units:
        count.update(agree.get(unit, {}))
    if none := [unit for unit in units if unit in agree and not agree[unit]]:
        print(f"  left out by its runner: {' '.join(none)}")
    told(name, version, asked, **{what: count[what] for what in ("units", "both", "alone", "excused")},
         **{"skipped": count["skipped"]} if suite.result else {})
    return count["alone"]


def _sorted_out(name: str, batch: Sequence[str], found: Found, expected: Found,
                text: str) -> tuple[dict[str, dict[str, int]], dict[str, set[str]]]:
    """For each unit what it counts as (none, if its runner leaves it out), and what fails inside alone without a row."""
    counts: dict[str, dict[str, int]] = {unit: {} for unit in batch}
    differ: dict[str, set[str]] = {}
    for unit in {*found, *expected}:
        failed = found.get(unit, NO_RESULT)
        known = expected.get(unit, NO_RESULT) if failed else {}
        alone = {*failed} - {*known}
        rows = {each for each in alone if reason(name, unit, each, failed[each] or text)}
        skipped = any(each.startswith(SKIPS) for each in known)
        counts[unit] = {"units": 1, "excused": len(rows), "skipped": skipped, "both": int(bool(known) and not skipped)}
        if alone - rows:
            differ[unit] = alone - rows
    return counts, differ


@contextlib.contextmanager
def _trees(tree: Path, folder: Path) -> Iterator[tuple[Path, Path]]:
    """Two copies of the tree in memory, where a sync costs nothing: of the ordinary user, and for sandboxes."""
    with tempfile.TemporaryDirectory(dir=folder) as made, contextlib.ExitStack() as mounted:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "leeward-suites", made], check=True)
        mounted.callback(subprocess.run, ["umount", "--lazy", made], check=True)
        for name in ("outside", "inside"):
            subprocess.run(["cp", "-a", "--", tree, f"{made}/{name}"], check=True)
        subprocess.run(["chown", "-R", f"{USER}:{USER}", f"{made}/outside"], check=True)
        yield Path(made, "outside"), Path(made, "inside")


@contextlib.contextmanager
def _daemon(more: str = "pool_size = 1\n") -> Iterator[LiveDaemon]:
    with tempfile.TemporaryDirectory(prefix="leeward-suites-") as made:
        config = Path(made, "c.toml")
        config.write_text(CONFIG + more + PROFILE)
        config.chmod(0o600)
        with LiveDaemon(Path(made), "--config", str(config)) as daemon:
            yield daemon


def interpreter(version: str, folder: Path) -> Path:
    """A copy of the interpreter of *version*, which every user can reach, with an environment `venv` of it; made once."""
    made = folder / f"python{version}"
    if not made.exists():
        kept = sorted(Path.home().glob(f".pyenv/versions/{version}.*"))
        prefix = Path(sys.base_prefix) if sys.version.startswith(f"{version}.") else kept[-1]
        subprocess.run(["cp", "-a", "--", prefix, f"{made}-new"], check=True)
        subprocess.run([*APT, "install", "patchelf"], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        subprocess.run(["patchelf", "--set-rpath", made / "lib", f"{made}-new/bin/python{version}"], check=True)
        Path(f"{made}-new").rename(made)
        subprocess.run([made / "bin/python3", "-m", "venv", "--without-pip", made / "venv"], check=True)
        subprocess.run([Path(sys.executable).with_name("uv"), "pip", "install", "-q", "--python", made / "venv/bin/python",
                        "cffi", "msgpack"], check=True)  # what a job's interpreter of another version needs
    return made


def cpython_compared(version: str, asked: argparse.Namespace) -> int:
    """As `compared`, for the modules of CPython's suite."""
    place = interpreter(version, Path(asked.folder))
    with (_daemon(f'{cpython.CONFIGURATION}[environments.other]\npath = "{place}/venv"\n') as daemon,
          tempfile.TemporaryDirectory() as work):
        os.chmod(work, 0o777)
        options = ["--environment", "other"]
        python = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups",
                  *daemon.run("exec", *options, "import sys; print(sys.executable)").stdout.decode().split(), "-S"]
        full, *names = subprocess.run([*python, "-c", cpython.LISTS], capture_output=True, text=True,
                                      check=True).stdout.split()
        modules = part_of([name.removeprefix("test.") for name in names], asked)
        print(f"cpython-{version}: {len(modules)} modules of {len(names)}", flush=True)
        total, alone, neither = cpython.Compared(), 0, []
        for module in modules:
            found = cpython.compared(module, daemon, python, Path(work, "report.xml"), more=options, uid=int(USER))
            total.add(found)
            if not found.passed:
                neither.append(module)
            if found.bugs:
                alone += 1
                differs(f"cpython-{version}", module, found.bugs, found.said, Path(asked.folder))
        for why, count in total.excused.most_common():
            print(f"  {count} excused: {why}")
        print(f"  nothing passes outside: {' '.join(neither)}\n  passes when it runs again: {' '.join(total.unsteady)}")
        told(f"cpython-{version}", full, asked, units=len(modules), both=len(neither), alone=alone,
             excused=total.excused.total(), tests=total.passed)
    return alone


def main() -> int:
    reading = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reading.add_argument("suites", nargs="+", metavar="SUITE")
    reading.add_argument("--part", default="1/1", metavar="N/M|PREFIX")
    reading.add_argument("--only", action="append", default=[], metavar="UNIT")
    reading.add_argument("--again", action="store_true")
    reading.add_argument("--folder", default="/var/tmp/leeward-suites", metavar="FOLDER")
    asked = reading.parse_args()
    if os.geteuid() != 0:
        reading.error("the other side is another user, so this wants root")
    Path(asked.folder).mkdir(parents=True, exist_ok=True)
    found = [cpython_compared(name.partition("-")[2], asked) if name.startswith("cpython-") else compared(name, asked)
             for name in asked.suites]
    return int(any(found))


if __name__ == "__main__":
    sys.exit(main())
