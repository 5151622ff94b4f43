"""How a job of code alone tells its end, and who may tell it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import leeward
from kit.box import Box
from kit.live_daemon import LiveDaemon
from leeward.spec.outcome import Limit, Outcome

#: A child comes to the end of the code before its parent does.
FALL_THROUGH = """
import os
child = os.fork()
if child:
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

FILL = """
import os
with open("/workspace/all", "wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(1 << 20))
    except OSError as error:
        print(error.errno)
"""

CLOSE = """
import os
os.closerange(3, 256)
print("told by the exit status")
"""


#: How a job ends in the middle, and how that is told.
CUT = {
    "time": ("while True: pass", Outcome.TIMED_OUT),
    "memory": ("x = bytearray(1 << 30)\nfor i in range(0, 1 << 30, 4096): x[i] = 1", Outcome.OUT_OF_MEMORY),
    "signal": ("os.kill(os.getpid(), 9)", Outcome.SIGNALLED),
    "abort": ("os.abort()", Outcome.SIGNALLED),
    "exit": ("os._exit(3)", Outcome.FINISHED),
}


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    with Box() as made:
        yield made


@pytest.mark.parametrize("end", CUT)
def test_output_before_an_end_in_the_middle_comes_back(box: Box, end: str) -> None:
    """Without a group that counts memory so large a piece is refused by an rlimit: a MemoryError."""
    code, outcome = CUT[end]
    if "memory" == end and not box.engine.driver.memory_counted:
        outcome = Outcome.RAISED
    result = box.run(f"import os\nprint('said before')\n{code}", limits={"time": 2.0})

    assert (outcome, b"said before\n") == (result.outcome, result.stdout)


def test_many_short_lines_come_back_whole(box: Box) -> None:
    """The daemon looks at a job's output now and then, while the job goes on writing."""
    code = ("import time\n"
            "for i in range(20000):\n"
            "    print(i)\n"
            "    if not i % 2000: time.sleep(0.004)\n"
            "print('x' * 300000)\n"
            "for i in range(20000): print(i)\n")
    numbers = "".join(f"{i}\n" for i in range(20000))
    result = box.run(code)

    assert (Outcome.FINISHED, f"{numbers}{'x' * 300000}\n{numbers}") == (result.outcome, result.stdout_text)


def test_a_signal_is_named(box: Box) -> None:
    result = box.run("import os; os.kill(os.getpid(), 11)")

    assert result.error is not None
    assert "Signalled" == result.error.type
    assert 'killed by SIGSEGV: segmentation fault, in <module> ("<string>", line 1)' == result.error.message
    assert result.error.traceback.startswith("Fatal Python error: Segmentation fault\n")
    assert result.error.traceback == result.stderr_text


#: A fault below functions of ours that the job calls and that call it, in a thread, and behind much output.
DEEP_FAULTS = {
    "plain": "crash()",
    "thread": "import threading\nthread = threading.Thread(target=crash)\nthread.start()\nthread.join()",
    "much": "for _ in range(20000): os.write(2, b'a line before it\\n')\ncrash()",
    "recursion": "def deep(n):\n    return deep(n - 1) if n else crash()\ndeep(40)",
    "children": "if os.fork() == 0: os.abort()\nos.wait()\ncrash()",
}


@pytest.mark.parametrize("name", DEEP_FAULTS)
def test_no_frame_of_leeward_is_in_a_faults_text(box: Box, name: str) -> None:
    """Neither in `error` nor on stderr, and all else is there: the job's frames, and what it wrote before."""
    code = f"import os\ndef crash():\n    os.abort()\n{DEEP_FAULTS[name]}"
    result = box.run(code)

    assert result.error is not None
    said = result.stderr_text[result.stderr_text.rindex("Fatal Python error"):]
    assert result.error.traceback == said
    assert "Current thread 0x" in said
    assert '  File "<string>", line 3 in crash\n' in said
    assert "leeward" not in said
    assert 20000 * ("much" == name) == result.stderr_text.count("a line before it\n")
    assert (1 + ("children" == name)) == result.stderr_text.count("Fatal Python error")


#: `display` is a function of ours between two of the job's.
ODD = "import os\nclass Odd:\n    def _repr_html_(self): os.abort()\ndisplay(Odd())\n"


def frames(stderr: str) -> list[str]:
    return [line.rpartition("line ")[2] for line in stderr.splitlines() if line.startswith("  File")]


def test_every_client_gets_a_faults_text_with_the_jobs_frames_alone(tmp_path: Path) -> None:
    """Of a job that shows things or calls functions, a session, a kernel and its branch, and by the command line."""
    with LiveDaemon(tmp_path) as daemon:
        with daemon.client() as client:
            assert ["3 in _repr_html_", "4 in <module>"] == frames(client.execute(ODD, display=True).stderr_text)
            called = client.execute("import os\nf()\nos.abort()", functions={"f": lambda: 1}).stderr_text
            assert (["3 in <module>"], 1) == (frames(called), called.count("hread 0x"))  # none of ours, which waits
            with client.session() as session:
                session.execute("import os\ndef crash():\n    os.abort()")
                assert ["3 in crash", "1 in <module>"] == frames(session.execute("crash()").stderr_text)
        with leeward.Sandbox(socket=daemon.socket) as box:
            kernel = box.kernel()
            branch = kernel.fork()
            for each in (branch, kernel):
                assert ["1 in <module>"] == frames(each.execute("import os; os.abort()").stderr_text)
        done = daemon.run("exec", "import os; os.abort()")

    assert (134, ["1 in <module>"]) == (done.returncode, frames(done.stderr.decode()))
    assert b"Fatal Python error: Aborted" in done.stderr


def test_a_childs_fault_is_not_its_parents(box: Box) -> None:
    """It is told on stderr; the job that goes on ends as it does."""
    result = box.run("import os\nif os.fork() == 0: os.abort()\nos.wait(); print('goes on')")
    killed = box.run("import os\nif os.fork() == 0: os.abort()\nos.wait(); os.kill(os.getpid(), 9)")

    assert (Outcome.FINISHED, b"goes on\n", None) == (result.outcome, result.stdout, result.error)
    assert b"Fatal Python error: Aborted" in result.stderr
    assert killed.error is not None
    assert ("killed by SIGKILL: killed", "") == (killed.error.message, killed.error.traceback)


def test_a_fault_behind_much_output_is_reported(box: Box) -> None:
    result = box.run("import os, sys\nfor _ in range(20000): print('line', file=sys.stderr)\nos.abort()")

    assert result.error is not None
    assert result.error.traceback.startswith("Fatal Python error: Aborted\n")


def test_last_words_that_a_job_makes_up_are_its_own_text(box: Box) -> None:
    """They are taken for no more than text, and no init has a handler that it could be made to say something by."""
    forged = box.run("import faulthandler, os\nfaulthandler.disable()\n"
                     "os.write(2, b'Fatal Python error: \\xff made up')\nos.abort()")
    masks = box.run("import os\nfor pid in (1, 2):\n"
                    "    print([line.split()[1] for line in open(f'/proc/{pid}/status') if 'SigCgt' in line])")

    assert forged.error is not None
    assert "Fatal Python error: \ufffd made up" == forged.error.traceback
    init, job = (int(line.strip("[']"), 16) for line in masks.stdout_text.splitlines())
    assert not init & 1 << 10
    assert job & 1 << 10  # SIGSEGV


@pytest.mark.parametrize("rehearse", [True, False])
def test_a_child_that_reaches_the_end_of_the_code_sends_no_reply(rehearse: bool) -> None:
    """It exits, and its parent's end is the job's."""
    with Box(rehearse=rehearse) as box:
        result = box.run(FALL_THROUGH)

    assert (Outcome.FINISHED, 0, b"0\n") == (result.outcome, result.exit_code, result.stdout)


def test_a_full_file_system_is_reported_without_an_exception(box: Box) -> None:
    result = box.run(FILL)

    assert (Outcome.FINISHED, Limit.FILES, b"28\n") == (result.outcome, result.limit, result.stdout)


def test_a_job_that_has_closed_its_reply_pipe_is_reported_by_its_exit_status(box: Box) -> None:
    result = box.run(CLOSE)

    assert (Outcome.FINISHED, 0, None, b"told by the exit status\n") == (
        result.outcome, result.exit_code, result.limit, result.stdout)


def test_a_frame_for_which_there_is_no_memory_is_an_error() -> None:
    """Else its process would end in order, and the job count as one that has run."""
    code = ("import os, resource\n"
            "from leeward._native.job_pipes import Pipes\n"
            "read, write = os.pipe()\n"
            "os.write(write, bytes((0x40, 0, 0, 0)))\n"
            "pipes = Pipes(read, write, lone=b'x', workspace='/', nothing=b'', last=True)\n"
            "os.close(write)\n"
            "resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))\n"
            "try:\n    print(pipes.take())\nexcept MemoryError:\n    print('no memory')\n")

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "no memory\n" == done.stdout
