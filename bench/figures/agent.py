"""
The time from `leeward agent start` to the first byte of the agent's screen, beside the same program under bubblewrap with
the same folders; and that of a project with many files beside a small one. The daemon is warm, as for a second start.

LEEWARD_BENCH_AGENT has the program and its arguments, such as the `claude` of the wheel claude-agent-sdk.
"""

from __future__ import annotations

import contextlib
import os
import pty
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.figures.row import FigureSettings, Row, compared, missing
from leeward.apps.agents.programs import AgentProgram, find
from leeward.errors import LeewardError
from leeward.spec.limits import Limits
from leeward.spec.profiles import HostPython, python
from leeward.spec.sandbox import SandboxSpec
from leeward_cli.bench.ours import program as leeward

_AGENT = "LEEWARD_BENCH_AGENT"
_WORDS = "an agent's first byte over the same program's in bubblewrap"
_FILES = 100_000
_DEFINITION = 'command = ["{program}"]\nstate = ["~/.state"]\n'


def first_byte(argv: list[str], env: dict[str, str]) -> float:
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
        raise LeewardError(f"bench: {argv[:4]}: status {status}: {shown!r}")
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


def homes(home: Path, program: AgentProgram) -> None:
    """Make a home with an agent, its state, a small and a large project."""
    for name in ("small", "large", ".state", ".config/leeward/agents/agent"):
        (home / name).mkdir(parents=True)
    for name in ("small", "large"):
        (home / name / "code.py").write_text("print()\n")
    for number in range(_FILES):
        place = home / "large" / f"{number // 500}"
        place.mkdir(exist_ok=True)
        (place / f"{number}.py").touch()
    definition = home / ".config/leeward/agents/agent/agent.toml"
    definition.write_text(_DEFINITION.format(program=program.argv[-1]))
    definition.chmod(0o600)


def measure_agent(settings: FigureSettings) -> Sequence[Row]:
    words = shlex.split(os.environ.get(_AGENT, ""))
    program, bwrap = find(words[0], os.environ) if words else None, shutil.which("bwrap")
    if program is None:
        return [missing(_WORDS, 1.35, f"{_AGENT} names no program")]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lw-agent-")))
        home = folder / "home"
        homes(home, program)
        (folder / "run").mkdir(mode=0o700)
        env = {**os.environ, "HOME": str(home), "XDG_RUNTIME_DIR": str(folder / "run"),
               "LEEWARD_SOCKET": str(folder / "run/s"), "XDG_STATE_HOME": str(folder / "state")}
        env.pop("XDG_CONFIG_HOME", None)
        subjects = {f"leeward, a {name} project": (
            [leeward(), "agent", "start", "agent", str(home / name), "--", *words[1:]], env) for name in ("small", "large")}
        subjects["by itself"] = [*program.argv, *words[1:]], variables(home)
        if bwrap is not None:
            subjects["bubblewrap"] = [bwrap, *same_view(folder, home, program), *program.argv, *words[1:]], env
        stack.callback(subprocess.run, [leeward(), "daemon", "stop"], env=env, check=False, stdout=subprocess.DEVNULL)
        subprocess.run([leeward(), "daemon", "start"], env=env, check=True, stdout=subprocess.DEVNULL)
        for argv, own in subjects.values():
            first_byte(argv, own)  # the pool begins, and files come into the page cache
        found: dict[str, list[list[float]]] = {name: [] for name in subjects}
        for _ in range(settings.some(10)):
            for name, (argv, own) in subjects.items():
                found[name].append([first_byte(argv, own)])
    small, large = list(subjects)[:2]
    return [missing(_WORDS, 1.35, "no bwrap on the PATH") if bwrap is None else
            compared(_WORDS, found, small, "bubblewrap", 1.35, gap_s=0.0),
            compared("an agent's first byte over the same program's by itself", found, small, "by itself", None, gap_s=0.0),
            compared(f"an agent's first byte in a project of {_FILES:,} files over that in a small one", found, large, small,
                     None, gap_s=0.0)]
