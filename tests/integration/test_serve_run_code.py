"""`leeward serve run-code`: SandboxFusion's interface, by plain requests and by its own client."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import threading

import pytest

from kit.live_daemon import LiveDaemon
from kit.served import Served, client_python
from kit.waiting import poll_until

pytestmark = pytest.mark.needs("extra-serve")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve")
    with LiveDaemon(folder) as daemon, Served(daemon.socket, folder, "run-code", "--wait", "2") as found:
        yield found


def run(served, **fields):
    status, row = served.ask("POST", "/run_code", {"language": "python", **fields})
    assert 200 == status, row
    return row


def test_a_program_runs_with_its_files_input_and_arguments(served):
    code = "import sys\nopen('out.bin', 'wb').write(open('in/a.txt', 'rb').read() * 2)\nprint(input(), *sys.argv[1:])"

    row = run(served, code=code, stdin="hi\n", args=["x", "y"], fetch_files=["out.bin", "missing"],
              files={"in/a.txt": base64.b64encode(b"\0a").decode(), "no": None})

    assert "Success" == row["status"]
    assert ("Finished", 0, "hi x y\n") == tuple(row["run_result"][name] for name in ("status", "return_code", "stdout"))
    assert {"out.bin": base64.b64encode(b"\0a\0a").decode()} == row["files"]
    assert row["compile_result"] is None


@pytest.mark.parametrize(("code", "status", "return_code", "says"), [
    ("import sys; print('x', file=sys.stderr); sys.exit(3)", "Finished", 3, "x\n"),
    ("1/0", "Finished", 1, "ZeroDivisionError"),
    ("while True: pass", "TimeLimitExceeded", None, ""),
    ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "Finished", 137, ""),
])
def test_what_a_program_did_is_failed(served, code, status, return_code, says):
    row = run(served, code=code, run_timeout=0.5)

    assert "Failed" == row["status"]
    assert (status, return_code) == (row["run_result"]["status"], row["run_result"]["return_code"])
    assert says in row["run_result"]["stderr"]


@pytest.mark.parametrize(("language", "code", "compiled"), [
    ("bash", "read x; echo got $x", False),
    pytest.param("nodejs", "console.log('got ' + require('fs').readFileSync(0, 'utf8').trim())", False,
                 marks=pytest.mark.needs("node")),
    pytest.param("cpp", "#include <cstdio>\nint main() { char x[9]; scanf(\"%8s\", x); printf(\"got %s\\n\", x); }",
                 True, marks=pytest.mark.needs("c++")),
])
def test_another_language_is_compiled_and_run(served, language, code, compiled):
    row = run(served, language=language, code=code, stdin="it\n", compile_timeout=60)

    assert "Success" == row["status"], row
    assert "got it\n" == row["run_result"]["stdout"]
    assert compiled == (row["compile_result"] is not None)


@pytest.mark.needs("c++")
def test_a_program_that_does_not_compile_is_not_run(served):
    row = run(served, language="cpp", code="int main() { nonsense; }", compile_timeout=60)

    assert ("Failed", 1, None) == (row["status"], row["compile_result"]["return_code"], row["run_result"])
    assert "nonsense" in row["compile_result"]["stderr"]


def test_an_unknown_language_is_the_servers_fault(served):
    assert "SandboxError" == run(served, language="brainfuck", code="+")["status"]


def test_cells_share_their_state(served):
    status, row = served.ask("POST", "/run_jupyter", {"cells": ["x = 20", "print(x)\nx * 2", "1/0", "x"]})

    assert (200, "Success") == (status, row["status"])
    assert ["", "20\n", "", ""] == [cell["stdout"] for cell in row["cells"]]
    assert "40" == row["cells"][1]["display"][0]["text/plain"]
    assert "ZeroDivisionError" == row["cells"][2]["error"][0]["ename"]


def test_a_cell_that_is_late_ends_the_run(served):
    status, row = served.ask("POST", "/run_jupyter", {"cells": ["print(1)", "while True: pass", "2"], "cell_timeout": 0.5})

    assert (200, "Failed", "TimeLimitExceeded") == (status, row["status"], row["driver"]["status"])
    assert 2 == len(row["cells"])


def test_a_job_whose_client_has_gone_is_ended(served):
    """Else abandoned jobs would keep all workers."""
    body = json.dumps({"language": "python", "code": "while True: pass", "run_timeout": 60}).encode()
    head = f"POST /run_code HTTP/1.1\r\nHost: localhost\r\nX-API-KEY: {served.token}\r\nContent-Length: {len(body)}\r\n\r\n"
    for _ in range(8):
        with served.raw() as connection:
            connection.sendall(head.encode() + body)

    assert "Success" == run(served, code="print(1)")["status"]


def test_a_job_that_waits_too_long_is_answered_by_504(served):
    """Trainers repeat that status alone."""
    waiting = [threading.Thread(target=run, args=(served,), kwargs={"code": "import time; time.sleep(4)"}) for _ in range(4)]
    for each in waiting:
        each.start()
    statuses = []
    while 504 not in statuses and any(each.is_alive() for each in waiting):
        with served.asked("POST", "/run_code", {"language": "python", "code": "1"}) as response:
            statuses.append(response.status)
            if 504 == response.status:
                assert "1" == response.headers["Retry-After"]
    for each in waiting:
        each.join()

    assert 504 in statuses


def asks(**fields):
    return {"language": "python", "code": "1", **fields}


@pytest.mark.parametrize(("fields", "status"), [
    (b"{", 400), (b"[]", 400), (b"\xff", 400), (b"[" * 40_000, 400), (b"[" * 100_000, 413),
    ({"language": "python"}, 422), (asks(code=1), 400),
    (asks(files={"../x": ""}), 422), (asks(files={"x": "?"}), 422), (asks(files=[]), 400), (asks(run_timeout=0), 422),
    (asks(run_timeout=1e300), 422), (b'{"language": "python", "code": "1", "run_timeout": NaN}', 400),
    (asks(code="\ud800"), 400),
])
def test_a_hostile_body_is_refused(served, fields, status):
    found, row = served.ask("POST", "/run_code", fields)

    assert status == found
    assert {"detail"} == row.keys()


def test_without_a_token_nothing_runs(served):
    for token in ("", "e2b_" + "0" * 64, "x" * 10_000):
        assert 401 == served.ask("POST", "/run_code", {"language": "python", "code": "1"}, token)[0]


@pytest.mark.parametrize(("header", "value"), [("Authorization", "Bearer {}"), ("Authorization", "Basic {}")])
def test_a_token_may_come_as_bearer_or_in_the_url(served, header, value):
    token = base64.b64encode(f"x:{served.token}".encode()).decode() if "Basic" in value else served.token

    assert 200 == served.ask("POST", "/run_code", {"language": "python", "code": "1"}, "", **{header: value.format(token)})[0]


def test_a_revoked_token_does_not_work_any_more(served):
    token = served.new_token("short")

    def ask():
        return served.ask("POST", "/run_code", {"language": "python", "code": "1"}, token)[0]

    poll_until(lambda: 200 == ask(), "the server looks at the file once a second")
    served.revoke("short")
    poll_until(lambda: 401 == ask(), "the server looks at the file once a second")


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Host": "localhost.evil.example"}])
def test_another_host_is_refused(served, headers):
    assert 421 == served.ask("POST", "/run_code", {"language": "python", "code": "1"}, **headers)[0]


def test_a_page_of_another_origin_is_refused(served):
    assert 403 == served.ask("POST", "/run_code", {"language": "python", "code": "1"}, Origin="http://evil.example")[0]


@pytest.mark.needs("client-sandbox-fusion")
def test_the_servers_own_client_works_as_it_is(served):
    program = """
from sandbox_fusion import RunCodeRequest, RunJupyterRequest, run_code, run_jupyter, summary_run_code_result, SummaryMapping
good = run_code(RunCodeRequest(code="print(6 * 7)", language="python"), max_attempts=1)
bad = run_code(RunCodeRequest(code="1/0", language="python"), max_attempts=1)
cells = run_jupyter(RunJupyterRequest(cells=["a = 1", "a"]), max_attempts=1)
late = run_code(RunCodeRequest(code="while 1: pass", language="python", run_timeout=0.5), max_attempts=1)
said = [str(summary_run_code_result(each, SummaryMapping(RunTimeout="late"))) for each in (good, bad, late)]
print(good.run_result.stdout, said, len(cells.cells))
"""
    host, port = served.address
    done = subprocess.run([client_python("sandbox-fusion"), "-c", program], capture_output=True, text=True, timeout=100,
                          check=False, env={**os.environ, "SANDBOX_FUSION_ENDPOINT": f"http://x:{served.token}@{host}:{port}"})

    assert ("42\n ['RunStatus.Success', 'RunStatus.Failed', 'late'] 2\n", 0) == (done.stdout, done.returncode), done.stderr
