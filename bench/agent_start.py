"""
Measures the time from `leeward agent start` to the first byte of the agent's output, beside the same program under
bubblewrap with the same folders; and that of a project with many files beside a small one.

    .venv/bin/python bench/agent_start.py [--rounds N] [--files N] [--terminal] [--staged] [--json] [--] PROGRAM
        [ARGUMENT...]

PROGRAM is an agent's, such as the `claude` of the wheel claude-agent-sdk, with `--version`; with --terminal it is on a
terminal, and the first byte is of its screen; with --staged leeward copies a file of 64 KiB into its sandbox before, as
it does with Claude Code's ~/.claude.json. The daemon is warm, as for a user's second start. Subjects take turns, round by
round; ratios are of the medians and of the minima. "own" is the processor time of the command's processes: of
bubblewrap's with the program in it, of leeward's without what the daemon and the sandbox do.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from leeward.agents.programs import AgentProgram, find
from leeward.spec.limits import Limits
from leeward.spec.profiles import HostPython, python
from leeward.spec.sandbox import SandboxSpec

DEFINITION = 'command = ["{program}"]\nstate = ["~/.state"]\n'
STAGED = 'staged = ["~/.staged"]\n'


def first_byte(argv: list[str], env: dict[str, str]) -> float:
    """Run *argv* to its end. Returns the seconds until its first output."""
    begun = time.perf_counter()
    with subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        byte = process.stdout.read(1)
        taken = time.perf_counter() - begun
        _, said = process.communicate()
    if not byte or process.returncode:
        raise SystemExit(f"{argv[:4]}: status {process.returncode}: {said.decode(errors='replace')[-500:]}")
    return taken


def first_byte_of_a_screen(argv: list[str], env: dict[str, str]) -> float:
    """Run *argv* on a terminal. Returns the seconds until its first output."""
    begun = time.perf_counter()
    child, master = pty.fork()
    if not child:
        try:
            os.execve(argv[0], argv, {**env, "TERM": "xterm-256color"})
        finally:
            os._exit(127)
    shown = os.read(master, 1 << 16)
    taken = time.perf_counter() - begun
    os.kill(child, signal.SIGTERM)
    try:
        while os.read(master, 1 << 16):
            pass
    except OSError:
        pass  # the program has closed the terminal
    os.close(master)
    _, status = os.waitpid(child, 0)
    if not shown or shown.startswith(b"leeward:"):
        raise SystemExit(f"{argv[:4]}: status {status}: {shown!r}")
    return taken


def sandbox_spec() -> SandboxSpec:
    return python(HostPython(sys.executable, sys.version_info[:2], sys.base_prefix), {}, limits=Limits(), terminal=True)


def variables(home: Path) -> dict[str, str]:
    return {**dict(sandbox_spec().environment), "HOME": str(home), "PWD": str(home / "small"), "USER": "me",
            "PATH": "/usr/local/bin:/usr/bin:/bin", "TERM": "xterm-256color"}


def same_view(folder: Path, home: Path, program: AgentProgram) -> list[str]:
    """
    Options of bubblewrap's for the files and variables of the profile `agent`. What lies in /etc counts: Claude Code
    reads the certificates there as it starts, which takes it some 25 ms.
    """
    view = sandbox_spec().view
    options = ["--unshare-all", "--unshare-user", "--uid", "1000", "--die-with-parent", "--clearenv"]
    for name, value in variables(home).items():
        options += ["--setenv", name, value]
    options += ["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
                "--tmpfs", str(home)]
    for place in ("/bin", "/sbin", "/lib", "/lib64"):
        if os.path.islink(place):
            options += ["--symlink", os.readlink(place), place]
    for bind in view.binds:
        if bind.target.startswith("/etc/") and os.path.exists(bind.source):
            options += ["--ro-bind", bind.source, bind.target]
    (folder / "etc").mkdir()
    for text in view.texts:
        if text.target.startswith("/etc/"):
            own = folder / "etc" / os.path.basename(text.target)
            own.write_bytes(text.content)
            options += ["--ro-bind", str(own), text.target]
    for shown in ("small", ".state"):
        options += ["--bind", str(home / shown), str(home / shown)]
    for shown in program.shown:
        options += ["--ro-bind", shown, shown]
    return [*options, "--chdir", str(home / "small")]


def subjects(folder: Path, program: AgentProgram, arguments: list[str], files: int, env: dict[str, str],
             terminal: bool, staged: bool) -> dict[str, Callable[[], float]]:
    measure = first_byte_of_a_screen if terminal else first_byte
    home = folder / "home"
    for name in ("small", "large", ".state", ".config/leeward/agents/agent"):
        (home / name).mkdir(parents=True)
    for name in ("small", "large"):
        (home / name / "code.py").write_text("print()\n")
    for number in range(files):
        place = home / "large" / f"{number // 500}"
        place.mkdir(exist_ok=True)
        (place / f"{number}.py").touch()
    definition = home / ".config/leeward/agents/agent/agent.toml"
    definition.write_text(DEFINITION.format(program=program.argv[-1]) + (STAGED if staged else ""))
    (home / ".staged").write_bytes(bytes(1 << 16))
    definition.chmod(0o600)

    def ours(name: str) -> Callable[[], float]:
        leeward = shutil.which("leeward", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") or "leeward"
        return lambda: measure([leeward, "agent", "start", "agent", str(home / name), "--", *arguments], env)

    found = {"leeward": ours("small"), "large": ours("large"),
             "bare": lambda: measure([*program.argv, *arguments], variables(home))}
    bwrap = shutil.which("bwrap")
    if bwrap is not None:
        argv = [bwrap, *same_view(folder, home, program), *program.argv, *arguments]
        found["bwrap"] = lambda: measure(argv, env)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--terminal", action="store_true")
    parser.add_argument("--staged", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("program")
    parser.add_argument("arguments", nargs="*")
    asked = parser.parse_args()
    program = find(asked.program, os.environ)
    if program is None:
        parser.error(f"{asked.program}: no such program")
    with tempfile.TemporaryDirectory(prefix="lw-agent-") as place:
        folder = Path(place)
        (folder / "run").mkdir(mode=0o700)
        env = {**os.environ, "HOME": str(folder / "home"), "XDG_RUNTIME_DIR": str(folder / "run"),
               "LEEWARD_SOCKET": str(folder / "run/s"), "XDG_STATE_HOME": str(folder / "state")}
        env.pop("XDG_CONFIG_HOME", None)
        measured = subjects(folder, program, asked.arguments, asked.files, env, asked.terminal,
                            asked.staged)
        leeward = [sys.executable, "-P", "-m", "leeward_cli"]
        subprocess.run([*leeward, "daemon", "start"], env=env, check=True, stdout=subprocess.DEVNULL)
        times: dict[str, list[float]] = {name: [] for name in measured}
        own: dict[str, list[float]] = {name: [] for name in measured}
        try:
            for call in measured.values():
                call()  # the pool begins, and files come into the page cache
            for _ in range(asked.rounds):
                for name, call in measured.items():
                    before = resource.getrusage(resource.RUSAGE_CHILDREN)
                    times[name].append(call())
                    after = resource.getrusage(resource.RUSAGE_CHILDREN)
                    own[name].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        finally:
            subprocess.run([*leeward, "daemon", "stop"], env=env, check=False, stdout=subprocess.DEVNULL)
    rows = {name: {"median": statistics.median(each), "min": min(each), "own": statistics.median(own[name])}
            for name, each in times.items()}
    ratios = {f"{name} over {other}": {of: rows[name][of] / rows[other][of] for of in ("median", "min")}
              for name, other in (("leeward", "bwrap"), ("leeward", "bare"), ("large", "leeward")) if other in rows}
    if asked.json:
        print(json.dumps({"seconds": rows, "ratios": ratios, "load": os.getloadavg()[0]}))
        return 0
    for name, row in rows.items():
        print(f"{name:20} median {row['median'] * 1000:7.0f} ms, least {row['min'] * 1000:7.0f} ms,"
              f" own {row['own'] * 1000:6.0f} ms")
    for name, ratio in ratios.items():
        print(f"{name:20} median {ratio['median']:7.2f} x,  least {ratio['min']:7.2f} x")
    return 0


if __name__ == "__main__":
    sys.exit(main())
