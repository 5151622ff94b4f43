"""
The supervisor as what plays root's part in an image: ids that a process asks for, told to it and to what it starts.

The filter is the only lock here: what a real sandbox may do is in test_images.py.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kit import confined
from kit.confined import NUMBER
from leeward.daemon.supervisor import Supervisor
from leeward.isolation.seccomp import filters
from leeward.isolation.seccomp.widen_owners import with_owners

pytestmark = pytest.mark.needs("seccomp-notify")

_AS_ROOT = filters.program(memory_counted=True, affinity_fixed=False, arch=os.uname().machine, root=True)
ROOT, OWNERS = _AS_ROOT.insns, with_owners(_AS_ROOT, os.uname().machine).insns
UNCOUNTED = filters.program(memory_counted=False, affinity_fixed=True, arch=os.uname().machine, root=True).insns
USUAL = filters.program(memory_counted=True, affinity_fixed=False, arch=os.uname().machine).insns

#: `ids` tells all six, by getresuid(2) and getresgid(2).
IDS = f"""
def three(number):
    found = (ctypes.c_uint32 * 3)()
    return [call(number, *(ctypes.addressof(found) + 4 * at for at in range(3))), *found]
def ids():
    return three({NUMBER["getresuid"]})[1:] + three({NUMBER["getresgid"]})[1:]
"""

#: As it reads /proc/self/status, whose user and groups are the kernel's.
REAL = """
def real():
    return [line.split()[1:] for line in open("/proc/self/status") if line.startswith(("Uid:", "Gid:"))]
"""


def told(supervisor: Supervisor, code: str, program: bytes = ROOT) -> Any:
    """What a confined process tells by *code*; it is refused nothing."""
    with confined.confined(IDS + REAL + code, supervisor, program=program) as child:
        got = child.told()

        assert {} == supervisor.counts(child.job)
        return got


def test_a_process_is_told_the_ids_that_it_has_asked_for(supervisor: Supervisor) -> None:
    """As apt-get drops them, and looks; the kernel's own stay what they were."""
    before, dropped, calls, same = told(supervisor, """
before, was = ids(), real()
os.setgroups([65534])
os.setresgid(5, 5, 5)
os.setresuid(42, 42, 42)
tell([before, ids(), [os.getuid(), os.geteuid(), os.getgid(), os.getegid()], was == real()])
""")

    assert [0] * 6 == before
    assert [42, 42, 42, 5, 5, 5] == dropped
    assert [42, 42, 5, 5] == calls
    assert same


def test_what_a_process_starts_is_told_the_same(supervisor: Supervisor) -> None:
    """Over fork and exec, and nobody else; who isn't root any more becomes it by none of the calls."""
    got = told(supervisor, f"""
import subprocess
child = "import os, sys; print(os.getuid(), os.getegid())"
run = lambda: subprocess.run([sys.executable, "-I", "-c", child], capture_output=True, text=True).stdout.split()
before = run()
if not os.fork():
    os.setgid(7), os.setuid(33)
    after = run()
    tell([before, after, call({NUMBER["setuid"]}, 0), call({NUMBER["setresuid"]}, -1, 0, -1),
          call({NUMBER["setgid"]}, 0), ids()])
    os._exit(0)
os.wait()
time.sleep(60)
""")

    assert [["0", "0"], ["33", "7"], -1, -1, -1, [33, 33, 33, 7, 7, 7]] == got


def test_who_keeps_a_saved_id_comes_back(supervisor: Supervisor) -> None:
    got = told(supervisor, f"""
os.seteuid(33)
away = ids()
os.seteuid(0)
tell([away[:3], ids()[:3], call({NUMBER["setuid"]}, -1), call({NUMBER["setuid"]}, 1 << 20), call({NUMBER["setfsuid"]}, 5)])
""")

    assert [[0, 33, 0], [0, 0, 0], -22, -22, 0] == got


def test_an_address_that_is_none_is_a_fault(supervisor: Supervisor) -> None:
    assert -14 == told(supervisor, f'tell(call({NUMBER["getresuid"]}, 8, 8, 8))')


def test_pages_that_an_answer_makes_are_charged(supervisor: Supervisor) -> None:
    """The watch, where no cgroup counts, goes by faults of the process: it has none here. What is there costs nothing."""
    code = f"""
import mmap, resource
pages = mmap.mmap(-1, 12 << 12, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
at = ctypes.addressof(ctypes.c_char.from_buffer(pages))
def ask():
    return [call({NUMBER["getresuid"]}, *(at + 4096 * (first + more) for more in range(3))) for first in (0, 3, 6, 9)]
for _ in range(2):
    parent.recv(1)
    tell(ask())
parent.recv(1)
"""
    with confined.confined(code, supervisor, program=UNCOUNTED) as child:
        supervisor.grant(child.job, 1 << 20, -1)
        for _ in range(2):
            child.go()
            assert [0] * 4 == child.told()
            assert 12 <= supervisor.charged(child.job) // 4096 < 16  # a page or so of the answering thread's own


def test_owners_are_told_where_nobody_may_watch(supervisor: Supervisor, tmp_path: Path) -> None:
    """As with 2 GiB of memory, of which the kernel has too few watches for one sandbox. Control: the kernel's owner."""
    code = f"""
at = {str(tmp_path)!r}
os.chown(at, 33, 44)
tell([os.stat(at).st_uid, os.lstat(at).st_gid, os.stat(at + "/..").st_uid])
"""
    assert [33, 44, os.getuid()] == told(supervisor, code, OWNERS)
    assert os.getuid() == tmp_path.stat().st_uid


def test_a_new_file_has_not_the_owner_of_one_that_is_gone(supervisor: Supervisor, tmp_path: Path) -> None:
    """Of which ext4 gives it the inode; not the user either, if somebody sets its group alone."""
    code = f"""
at = {str(tmp_path / "file")!r}
def fresh():
    open(at, "x").close()
    return os.stat(at).st_ino
def ours():
    return [os.stat(at).st_uid, os.stat(at).st_gid]
given = fresh()
os.chown(at, 33, 44)
before = ours()
for _ in range(100):
    os.unlink(at)
    if given == fresh():
        break
after = ours()
os.chown(at, -1, 55)
tell([before, after, ours()])
"""
    before, after, group = told(supervisor, code, OWNERS)

    assert ([33, 44], [os.getuid(), os.getgid()], [0, 55]) == (before, after, group)


def test_without_the_rows_nothing_is_played(supervisor: Supervisor) -> None:
    """Control: the usual filter leaves it to the kernel."""
    assert [os.getuid(), os.geteuid()] == told(supervisor, "tell([os.getuid(), os.geteuid()])", USUAL)


#: Makes the calls in its argument; tells each result and the ids after it.
_DANCE = """
import ctypes, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *args):
    got = libc.syscall(ctypes.c_long(number), *map(ctypes.c_ulong, args))
    return -ctypes.get_errno() if -1 == got else got
"""
_EACH = """
found = []
for name, *args in calls:
    found.append([call(name, *args), ids()])
"""


@pytest.mark.needs("root")
@pytest.mark.parametrize("seed", range(3))
def test_the_answers_are_those_of_the_kernel_to_root(supervisor: Supervisor, seed: int) -> None:
    """Any order of calls, compared with a process that has the right to make them."""
    chance = random.Random(seed)
    names = {"setuid": 1, "setgid": 1, "setreuid": 2, "setregid": 2, "setresuid": 3, "setresgid": 3}
    calls = [[NUMBER[name], *(chance.choice((0, 0, 1, 2, 0xFFFF_FFFF)) for _ in range(arguments))]
             for name, arguments in chance.choices(list(names.items()), k=40)]
    text = f"calls = {calls!r}\n" + _EACH
    outside = subprocess.run([sys.executable, "-I", "-c", _DANCE + IDS + text + "print(json.dumps(found))"],
                             capture_output=True, text=True, check=True).stdout

    assert json.loads(outside) == told(supervisor, text + "tell(found)")


def test_who_keeps_capabilities_may_change_groups_once_after_the_user(supervisor: Supervisor) -> None:
    """As setpriv does. Control: without that, and afterwards, it may not, as for the kernel."""
    calls = [[NUMBER["prctl"], 8, keeps] for keeps in (2, 0, 1)]
    change = [[NUMBER["setresuid"], 1, 1, 1], [NUMBER["setresgid"], 2, 2, 2], [NUMBER["setresgid"], 3, 3, 3]]
    text = "calls = {!r}\n" + _EACH + "tell([result for result, _ in found])"

    assert [-22, 0, 0, 0, 0, -1] == told(supervisor, _DANCE + text.format([*calls, *change]))
    assert [0, -1, -1] == told(supervisor, _DANCE + text.format(change))
