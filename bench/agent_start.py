"""
From `leeward agent start` to the first byte of the agent's output, beside the same program under bubblewrap with the
same folders; and a project with many files beside a small one.

    .venv/bin/python bench/agent_start.py [--rounds N] [--files N] [--json] [--] PROGRAM [ARGUMENT...]

PROGRAM is an agent's, such as the `claude` of the wheel claude-agent-sdk, with `--version`. A daemon of its own is
started once and is warm, as it is for everybody's second start. The subjects take turns, round by round; ratios are of
the medians and of the minima. Where there is no bwrap its column is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

DEFINITION = 'command = ["{program}"]\nstate = ["~/.state"]\n'


def first_byte(argv: list[str], env: dict[str, str]) -> float:
    """
    Seconds until something was written.
    """
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


def subjects(folder: Path, program: str, arguments: list[str], files: int,
             env: dict[str, str]) -> dict[str, Callable[[], float]]:
    """
    What is measured, by name.
    """
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
    definition.write_text(DEFINITION.format(program=program))
    definition.chmod(0o600)

    def ours(name: str) -> Callable[[], float]:
        leeward = shutil.which("leeward", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") or "leeward"
        return lambda: first_byte([leeward, "agent", "start", "agent", str(home / name), "--", *arguments], env)

    found = {"leeward": ours("small"), "large": ours("large"),
             "bare": lambda: first_byte([program, *arguments], env)}
    bwrap = shutil.which("bwrap")
    if bwrap is not None:
        links = [word for place in ("/bin", "/sbin", "/lib", "/lib64") if os.path.islink(place)
                 for word in ("--symlink", os.readlink(place), place)]
        state = home / ".state"
        argv = [bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/usr", "/usr", *links,
                "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", str(home), "--bind",
                str(home / "small"), str(home / "small"), "--bind", str(state), str(state), "--ro-bind", program,
                program, "--chdir", str(home / "small"), program, *arguments]
        found["bwrap"] = lambda: first_byte(argv, env)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("program")
    parser.add_argument("arguments", nargs="*")
    asked = parser.parse_args()
    program = os.path.realpath(shutil.which(asked.program) or asked.program)
    with tempfile.TemporaryDirectory(prefix="lw-agent-") as place:
        folder = Path(place)
        (folder / "run").mkdir(mode=0o700)
        env = {**os.environ, "HOME": str(folder / "home"), "XDG_RUNTIME_DIR": str(folder / "run"),
               "LEEWARD_SOCKET": str(folder / "run/s"), "XDG_STATE_HOME": str(folder / "state")}
        env.pop("XDG_CONFIG_HOME", None)
        measured = subjects(folder, program, asked.arguments, asked.files, env)
        leeward = [sys.executable, "-P", "-m", "leeward_cli"]
        subprocess.run([*leeward, "daemon", "start"], env=env, check=True, stdout=subprocess.DEVNULL)
        times: dict[str, list[float]] = {name: [] for name in measured}
        try:
            for call in measured.values():
                call()  # the pool begins, and files come into the page cache
            for _ in range(asked.rounds):
                for name, call in measured.items():
                    times[name].append(call())
        finally:
            subprocess.run([*leeward, "daemon", "stop"], env=env, check=False, stdout=subprocess.DEVNULL)
    rows = {name: {"median": statistics.median(each), "min": min(each)} for name, each in times.items()}
    ratios = {f"{name} over {other}": {of: rows[name][of] / rows[other][of] for of in ("median", "min")}
              for name, other in (("leeward", "bwrap"), ("leeward", "bare"), ("large", "leeward")) if other in rows}
    if asked.json:
        print(json.dumps({"seconds": rows, "ratios": ratios, "load": os.getloadavg()[0]}))
        return 0
    for name, row in rows.items():
        print(f"{name:20} median {row['median'] * 1000:7.0f} ms, least {row['min'] * 1000:7.0f} ms")
    for name, ratio in ratios.items():
        print(f"{name:20} median {ratio['median']:7.2f} x,  least {ratio['min']:7.2f} x")
    return 0


if __name__ == "__main__":
    sys.exit(main())
