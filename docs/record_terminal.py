"""
`./dev recording [NAME...]`: types commands on a terminal, README's first ones and the example that searches over snapshots,
and makes docs/NAME.cast of each, in asciinema's format, and docs/NAME.svg of that.

The commands print lines and move no cursor, so that a line of the picture is a line of the output.
"""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 100
#: Seconds before a command is typed, in which what the last one printed can be read; before it all begins anew.
PAUSE_S, END_S = 1.5, 5.0
_LINE, _CHARACTER = 19, 8.43

Event = tuple[float, str, str]


def commands() -> list[str]:
    """The lines of README's first block."""
    console = re.search(r"```console\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return re.findall(r"^\$ (.+)$", console[1] if console else "", re.MULTILINE)


#: What is typed in each recording.
TYPED = {"first-commands": commands(), "tree-search": ["sed -n '/^PROGRAM/,$p' examples/tree_search.py",
                                                       "python examples/tree_search.py"]}


def cast_of(name: str) -> Path:
    return ROOT / "docs" / f"{name}.cast"


def recorded(lines: Iterable[str], env: dict[str, str]) -> Iterator[Event]:
    """What a terminal shows of *lines*, each run by the shell when the one before has ended; the times are real."""
    now = 0.0
    for line in lines:
        now += PAUSE_S
        yield now, "o", f"$ {line}\r\n"
        began = time.monotonic()
        main, terminal = pty.openpty()
        with subprocess.Popen(["sh", "-c", line], cwd=ROOT, env=env, stdin=terminal, stdout=terminal, stderr=terminal):
            os.close(terminal)
            try:
                while data := os.read(main, 65536):
                    yield round(now + time.monotonic() - began, 3), "o", data.decode()
            except OSError:  # EIO: all have closed it
                pass
        os.close(main)
        now = round(now + time.monotonic() - began, 3)


def cast(events: Iterable[Event]) -> str:
    """asciicast, version 2."""
    head = {"version": 2, "width": COLUMNS, "height": 24, "env": {"TERM": "xterm", "SHELL": "/bin/sh"}}
    return "\n".join(json.dumps(each) for each in (head, *events)) + "\n"


def svg(text: str) -> str:
    """The recording *text* as a picture that plays by itself, again and again."""
    head, *events = map(json.loads, text.splitlines())
    rows = [(when, shown) for when, _, data in events for line in data.splitlines()
            for shown in (re.findall(f".{{1,{head['width']}}}", line) or [""])]
    last = events[-1][0] + END_S
    height, width = (len(rows) + 1) * _LINE, head["width"] * _CHARACTER + 24
    frames, drawn = [], []
    for number, (when, shown) in enumerate(rows):
        share = 100 * when / last
        frames.append(f"@keyframes l{number}{{0%,{share:.2f}%{{opacity:0}}{share + 0.01:.2f}%,100%{{opacity:1}}}}")
        kind = "c" if shown.startswith("$ ") else "o"
        style = f"animation:l{number} {last:.1f}s infinite"
        drawn.append(f'<text class="{kind}" x="12" y="{(number + 1) * _LINE}" style="{style}">{escape(shown)}</text>')
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}">',
        "<style>text{font:14px ui-monospace,monospace;white-space:pre}.c{fill:#fff}.o{fill:#9fd0a5}",
        "@media (prefers-reduced-motion){text{animation:none!important}}", *frames, "</style>",
        '<rect width="100%" height="100%" rx="6" fill="#1b2330"/>', *drawn, "</svg>", ""])


def main(names: Iterable[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="leeward-recording-") as folder:
        env = {**os.environ, "LEEWARD_SOCKET": f"{folder}/leeward.sock", "TERM": "xterm",
               "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        subprocess.run(["leeward", "daemon", "start"], env=env, check=True, stdout=subprocess.DEVNULL)
        try:
            for name in names:
                cast_of(name).write_text(cast(recorded(TYPED[name], env)))
        finally:
            subprocess.run(["leeward", "daemon", "stop"], env=env, check=False)
    for name in names:
        cast_of(name).with_suffix(".svg").write_text(svg(cast_of(name).read_text()))


if __name__ == "__main__":
    main(sys.argv[1:] or list(TYPED))
