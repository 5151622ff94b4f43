"""
How a job of code alone tells its end, and who may tell it.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from box import Box
from leeward.outcome import Limit, Outcome

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


@pytest.mark.parametrize("rehearse", [True, False])
def test_a_child_that_comes_to_the_end_of_the_code_tells_nothing(rehearse: bool) -> None:
    """
    It exits, and its parent's end is the job's.
    """
    with Box(rehearse=rehearse) as box:
        result = box.run(FALL_THROUGH)

    assert (Outcome.FINISHED, 0, b"0\n") == (result.outcome, result.exit_code, result.stdout)


def test_a_full_file_system_is_told_though_nothing_was_raised() -> None:
    with Box() as box:
        result = box.run(FILL)

    assert (Outcome.FINISHED, Limit.FILES, b"28\n") == (result.outcome, result.limit, result.stdout)


def test_a_job_that_has_closed_its_reply_pipe_is_told_by_its_exit_status() -> None:
    with Box() as box:
        result = box.run(CLOSE)

    assert (Outcome.FINISHED, 0, None, b"told by the exit status\n") == (
        result.outcome, result.exit_code, result.limit, result.stdout)


def test_a_frame_for_which_there_is_no_memory_is_an_error() -> None:
    """
    Else its process would end in order, and the job count as one that has run.
    """
    code = ("import os, resource\n"
            "from leeward._native.job import Pipes\n"
            "read, write = os.pipe()\n"
            "os.write(write, bytes((0x40, 0, 0, 0)))\n"
            "pipes = Pipes(read, write, lone=b'x', workspace='/', nothing=b'', last=True)\n"
            "os.close(write)\n"
            "resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))\n"
            "try:\n    print(pipes.take())\nexcept MemoryError:\n    print('no memory')\n")

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "no memory\n" == done.stdout
