"""
The tables of a work folder through the other clients: every row of tools, the shell and JavaScript by the npm package,
and by the command line a row of each tool, some of the shell's, JavaScript, and paths that lead out.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kit.features import ROOT
from kit.javascript_cases import CASES, JS_FILES
from kit.live_daemon import LiveDaemon, command, environment
from kit.tool_rows import FILES, ROWS, SHELL, ToolRow

#: Runs what standard input has, one after the other, each with the files that it is to find; prints what each gave.
RUNS = """\
const { WorkdirSandbox } = require(process.argv[1]);
const [socket, command, workDir] = process.argv.slice(2);
const fs = require('fs');
(async () => {
  const { rows, files, js, jsFiles } = JSON.parse(fs.readFileSync(0, 'utf8'));
  const env = { GIVEN: 'yes' };
  const work = new WorkdirSandbox({ workDir, socket, command: JSON.parse(command), env, timeoutMs: 60000 });
  const put = (all) => {
    for (const name of fs.readdirSync(workDir)) fs.rmSync(`${workDir}/${name}`, { recursive: true });
    for (const [name, text] of Object.entries(all)) {
      if (name.includes('/')) fs.mkdirSync(`${workDir}/${name.split('/')[0]}`, { recursive: true });
      fs.writeFileSync(`${workDir}/${name}`, text);
    }
  };
  const told = (got) => ({ status: got.exitCode, out: got.stdoutText, error: got.stderrText, denied: got.denied });
  const said = { tools: await work.availableTools(), rows: [], js: [] };
  for (const argv of rows) {
    put(files);
    said.rows.push(await work.exec(argv[0], argv.slice(1)).then(told, (error) => ({ kind: error.kind })));
  }
  put(jsFiles);
  for (const { code, args } of js) said.js.push(told(args ? await work.exec('node', args) : await work.execJs(code)));
  await work.destroy();
  console.log(JSON.stringify(said));
})();
"""

DAEMON = ("--pool-size", "4")


def argv_of(row: ToolRow) -> list[str]:
    return ["sh", "-c", row.argv] if isinstance(row.argv, str) else list(row.argv)


def misses(row: ToolRow, got: Mapping[str, Any]) -> bool:
    """Is it something else than what the table says?"""
    return not (row.status == got["status"] and row.out in (None, got["out"]) and row.has in got["out"])


@pytest.mark.needs("node>=18", "usr-node")
@pytest.mark.timeout(600)
def test_the_npm_package_behaves_as_the_tables_say(daemon: LiveDaemon) -> None:
    """Tools, the shell, and JavaScript. A tool that the host lacks isn't found there either."""
    rows = [*ROWS, *SHELL.values()]
    asked = {"rows": [argv_of(row) for row in rows], "files": FILES, "jsFiles": JS_FILES,
             "js": [{"code": case.code, "args": case.args} for case in CASES.values()]}
    with tempfile.TemporaryDirectory(prefix="lw-workdir-") as folder:
        argv = ["node", "-e", RUNS, "--", ROOT / "leeward/clients/node", daemon.socket, json.dumps(command()), folder]
        done = subprocess.run(argv, input=json.dumps(asked), capture_output=True, text=True, timeout=500, check=False,
                              env=environment())
    assert 0 == done.returncode, done.stderr
    said = json.loads(done.stdout)
    there = [(row, got) for row, got in zip(rows, said["rows"], strict=True)
             if not row.needs or row.needs in said["tools"]]
    assert len(there) > 100
    assert [] == [(row, got) for row, got in there if misses(row, got) or got["denied"]]
    for (name, case), got in zip(CASES.items(), said["js"], strict=True):
        assert case.status == got["status"], (name, got)
        assert re.fullmatch(case.says, got["out"]), (name, got)
        assert re.search(case.error, got["error"]), (name, got)


@pytest.mark.timeout(600)
def test_the_command_line_behaves_as_the_tables_say(daemon: LiveDaemon) -> None:
    """In sandboxes of the profile, each with a folder of its own: `leeward shell ID -- COMMAND`."""
    there = [row for row in reversed(ROWS) if not row.needs or shutil.which(row.needs, path="/usr/bin")]
    rows = [*{argv_of(row)[0]: row for row in there}.values(), *list(SHELL.values())[::4]]

    def one(lane: int) -> list[tuple[ToolRow, dict[str, Any]]]:
        wrong = []
        with tempfile.TemporaryDirectory(prefix="lw-workdir-") as folder:
            opened = daemon.run("sandbox", "new", "--profile", "workdir", "--workdir", folder, "--env", "GIVEN=yes")
            box = opened.stdout.decode().strip()
            assert 0 == opened.returncode, opened.stderr
            for row in rows[lane::2]:
                for entry in Path(folder).iterdir():
                    shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
                for name, content in FILES.items():
                    path = Path(folder, name)
                    path.parent.mkdir(exist_ok=True)
                    path.write_text(content)
                done = daemon.run("shell", box, "--", *argv_of(row))
                got = {"status": done.returncode, "out": done.stdout.decode(), "error": done.stderr.decode()}
                wrong += [(row, got)] if misses(row, got) else []
            daemon.run("sandbox", "kill", box)
        return wrong

    with ThreadPoolExecutor(2) as threads:
        assert [[], []] == list(threads.map(one, range(2)))


#: Cases of JavaScript that are about WorkdirSandbox itself: its `fetch`, its usage, and its clean environment.
OWN = ("fetch", "no arguments", "the environment")


@pytest.mark.needs("usr-node")
@pytest.mark.timeout(300)
def test_javascript_by_the_command_line(daemon: LiveDaemon) -> None:
    """`leeward shell ID -- node -e CODE`, in a sandbox of the profile."""
    cases = [(name, case) for name, case in CASES.items() if not name.startswith(OWN)]
    assert len(cases) > 30

    def one(lane: int) -> list[tuple[str, dict[str, Any]]]:
        wrong = []
        with tempfile.TemporaryDirectory(prefix="lw-workdir-") as folder:
            for name, text in JS_FILES.items():
                Path(folder, name).write_text(text)
            opened = daemon.run("sandbox", "new", "--profile", "workdir", "--workdir", folder)
            box = opened.stdout.decode().strip()
            assert 0 == opened.returncode, opened.stderr
            for name, case in cases[lane::2]:
                done = daemon.run("shell", box, "--", "node", *(["-e", case.code] if case.args is None else case.args))
                got = {"status": done.returncode, "out": done.stdout.decode(), "error": done.stderr.decode()}
                fits = (case.status == got["status"] and re.fullmatch(case.says, got["out"])
                        and re.search(case.error, got["error"]))
                wrong += [] if fits else [(name, got)]
            daemon.run("sandbox", "kill", box)
        return wrong

    with ThreadPoolExecutor(2) as threads:
        assert [[], []] == list(threads.map(one, range(2)))


#: Each leads out of the work folder, whose parent is the format's: by itself, or by a link that LINKS lays.
OUT = ("../secret", "../../../etc/shadow", "foo/../../secret", "./../../secret", "../outside/there", "{0}/secret",
       "away/there", "up/there", "name", "twice/there")
LINKS = "ln -s {0}/outside away; ln -s ../outside up; ln -s {0}/secret name; ln -s away twice"


@pytest.mark.timeout(120)
def test_no_path_of_the_command_line_leads_out(daemon: LiveDaemon) -> None:
    """
    By commands, which read, write and list, and by `leeward cp`, in both directions: nothing of the host's is got, and
    what lies beside the folder is as it was.
    """
    with tempfile.TemporaryDirectory(prefix="lw-workdir-") as made:
        place, secret = Path(made), "a-secret-of-the-hosts"
        for name in ("work", "outside", "got"):
            (place / name).mkdir()
        (place / "work/mine").write_text("mine")
        (place / "secret").write_text(secret)
        (place / "outside/there").write_text(secret)
        opened = daemon.run("sandbox", "new", "--profile", "workdir", "--workdir", str(place / "work"))
        box = opened.stdout.decode().strip()
        assert 0 == opened.returncode, opened.stderr
        assert 0 == daemon.run("shell", box, "--", "sh", "-c", LINKS.format(place)).returncode
        assert secret == (place / "work/twice/there").read_text()  # whoever follows them on the host gets there

        paths = [path.format(place) for path in OUT]
        line = "for each; do cat $each; ls -a $each $(dirname $each); echo x >$each; echo x >$each-new; done"
        done = daemon.run("shell", box, "--", "sh", "-c", line, "sh", *paths)
        assert secret.encode() not in done.stdout + done.stderr
        for number, path in enumerate(paths[4:]):
            inside = f"{box}:{path if path.startswith('/') else f'/workspace/{path}'}"
            daemon.run("cp", inside, str(place / "got" / str(number)))
            daemon.run("cp", str(place / "work/mine"), f"{inside}-new")
        assert secret not in "".join(file.read_text() for file in (place / "got").rglob("*") if file.is_file())

        assert (secret, secret) == ((place / "secret").read_text(), (place / "outside/there").read_text())
        assert {"work", "outside", "got", "secret"} == {entry.name for entry in place.iterdir()}
        assert ["there"] == [entry.name for entry in (place / "outside").iterdir()]
        daemon.run("sandbox", "kill", box)
