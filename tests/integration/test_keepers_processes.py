"""
A keeper's processes beside a runner, by themselves: orders go in, programs and their ends come out.

As in test_keeper.py each test runs a short program of its own, which stands in for zygote and daemon. The locks are no
part of it: a program's way is that of its descriptors alone.
"""

from __future__ import annotations

import re

import pytest

from integration import test_keeper

pytestmark = pytest.mark.needs("user-namespaces")

#: `begin` sends a Start beside the runner whose init is `init`; the program's output comes by the pipe that it returns.
PRELUDE = test_keeper.PRELUDE.replace("once=once)", "once=once, beside=[BESIDE] * 3)") + """
import contextlib, time
from leeward._native.keeper_loop import Way
from leeward._native.memfd import memory_file
from leeward.crossing import beside
from leeward.daemon.run.launch import Command, block

PROGRAM = [beside.IN, *ENDS[2:5]]
BESIDE = Way(Table(descriptors.steps(PROGRAM, 3)), PROGRAM)
NAMES = ("pid", "mnt", "ipc", "uts")

def runner(here, number=1):
    birth = arm(here, number)
    message, fds = here.receive()
    birth.close()
    return message.pid, fds

def entrances(init, names=NAMES):
    return [os.open(f"/proc/{init}/ns/{name}", os.O_RDONLY) for name in names]

def begin(here, init, number, command, data=None, names=NAMES, kind=control.Kind.PROGRAM, **more):
    with contextlib.ExitStack() as stack:
        def held(fd):
            stack.callback(os.close, fd)
            return fd
        spaces = entrances(init, names) if isinstance(init, int) else init
        for fd in spaces:
            held(fd)
        near, far = Channel.pair()
        stack.callback(near.close)
        stack.callback(far.close)
        null = held(os.open("/dev/null", os.O_RDWR))
        read, write = os.pipe()
        held(write)
        memory = held(memory_file("command"))
        os.write(memory, block(command) if data is None else data)
        here.send(control.Start(number, kind, False, False, 0, **more),
                  [*spaces, far.fileno(), null, write, write, memory])
    return read

def ended(here, number=None):
    said = []
    while not said or not isinstance(said[-1], (control.Exited, control.Unstarted)):
        message, fds = here.receive()
        for fd in fds:
            os.close(fd)
        said.append(message)
    return said

def held_by(pid):
    return sorted(os.listdir(f"/proc/{pid}/fd")), open(f"/proc/{pid}/task/{pid}/children").read().split()

def comes_to(before, pid):
    # It closes what came with an order, or what it made for a runner, after its answer.
    def no_more():
        fds, children = held_by(pid)
        return set(fds) <= set(before[0]) and children == before[1]
    # No event tells that another process has closed a descriptor.
    return any(no_more() or time.sleep(0.01) for _ in range(1000))

def parked(born):
    signal.pause()
"""


def program(body: str) -> str:
    """The output of *body*, without what no run repeats."""
    said = test_keeper.program(body, PRELUDE)
    return re.sub(r"(, spent=[0-9.e-]+|, peak=[0-9]+|, pid=[0-9]+)", "", said)


def test_a_program_runs_beside_and_its_end_is_reported() -> None:
    """In the runner's namespaces, as the keeper's child, with the descriptors that came along and no other."""
    said = program("""
here, pid = start(parked)
init, _ = runner(here)
read = begin(here, init, 9, Command((b"/bin/sh", b"-c", b"echo $$ $PPID; exit 7"), {}, b"/"))
messages = ended(here)
print(messages[0].process, messages[0].inside, messages[1])
print(os.read(read, 1000).decode().split() == [str(messages[0].inside), "0"], end(here, pid))
""")

    assert said.splitlines() == ["9 3 Exited(process=9, status=1792)", "True 0"]


@pytest.mark.parametrize(("order", "says"), [
    ("Command((b'/nowhere',), {}, b'/')", "stage=<Stage.EXEC: 7>, layer='', result=-2"),
    ("Command((b'/etc/passwd',), {}, b'/')", "stage=<Stage.EXEC: 7>, layer='', result=-13"),
    ("Command((b'/bin/true',), {}, b'/nowhere')", "stage=<Stage.FOLDER: 6>, layer='', result=-2"),
    ("None, data=b''", "stage=<Stage.CLONE: 0>, layer='', result=-71"),
    ("None, data=bytes(16)", "stage=<Stage.CLONE: 0>, layer='', result=-71"),
    ("None, data=struct.pack('=IIII', 1, 1, 0, 4) + b'/\\0a\\0'", "stage=<Stage.CLONE: 0>, layer='', result=-71"),
    ("None, data=struct.pack('=IIII', 1, 1, 0, 2**31) + b'/\\0a\\0b\\0'",
     "stage=<Stage.CLONE: 0>, layer='', result=-71"),
    ("None, data=struct.pack('=IIII', 2**31, 1, 0, 6) + b'/\\0a\\0b\\0'",
     "stage=<Stage.CLONE: 0>, layer='', result=-71"),
    ("Command((b'/bin/true',), {}, b'/'), names=('mnt', 'mnt', 'ipc', 'uts')",
     "stage=<Stage.NAMESPACES: 1>, layer='', result=-22"),
    ("Command((b'/bin/true',), {}, b'/'), cpu=100", "stage=<Stage.AFFINITY: 4>, layer='', result=-22"),
    ("Command((b'/bin/true',), {}, b'/'), cpu=5000", "stage=<Stage.AFFINITY: 4>, layer='', result=-22"),
])
def test_a_process_that_cannot_be_made_is_reported_without_a_leak(order: str, says: str) -> None:
    """Twenty times; the keeper lives, and has the descriptors and children that it had."""
    said = program(f"""
here, pid = start(parked)
init, _ = runner(here)
before = held_by(pid)
said = set()
for number in range(2, 22):
    os.close(begin(here, init, number, {order}))
    said.add(repr(ended(here)[-1]).replace(f"process={{number}}", "process=N").partition(", inside")[0])
print(*said, comes_to(before, pid), end(here, pid))
""")

    assert f"Unstarted(process=N, {says} True 0\n" == said


def test_a_dead_runner_takes_no_more() -> None:
    """ENOMEM is what clone3(2) says of a pid namespace whose init is gone."""
    said = program("""
here, pid = start(parked)
init, fds = runner(here)
spaces = entrances(init)
signal.pidfd_send_signal(fds[0], signal.SIGKILL)
print(here.receive()[0])
os.close(begin(here, spaces, 9, Command((b"/bin/true",), {}, b"/")))
print(ended(here)[-1], end(here, pid))
""")

    first, second = said.splitlines()
    assert "Ended(runner=1, status=None)" == first
    assert second.startswith("Unstarted(process=9, stage=<Stage.CLONE: 0>, layer='', result=-12")


def test_a_keeper_erases_the_orders_that_it_read() -> None:
    """
    A later job is a copy of the keeper, and may be another client's. The control is the order's number, which isn't
    secret.
    """
    said = program("""
secret = b"lw" + os.urandom(16).hex().encode()
kept = b"kept" + os.urandom(16).hex().encode()  # the keeper inherits this
here, pid = start(parked)
init, _ = runner(here)
def found(text):
    count = 0
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            span, rights = line.split()[:2]
            begin, end = (int(number, 16) for number in span.split("-"))
            if "r" == rights[0] and "[v" not in line:
                memory.seek(begin)
                try:
                    count += memory.read(end - begin).count(text)
                except OSError:
                    continue
    return count
before = found(secret)
for number in range(2, 6):
    os.close(begin(here, init, number, Command((b"/bin/true", secret * 9), {b"SECRET": secret * 200}, b"/")))
    ended(here)
print(found(kept) > 0, found(secret) - before, end(here, pid))
""")

    assert "True 0 0\n" == said


@pytest.mark.parametrize("order", [
    "control.Start(1, control.Kind.PROGRAM, False, False, 0)", "control.Start(1, control.Kind.PROGRAM, True, True, 3)"])
def test_a_start_without_its_descriptors_ends_the_keeper(order: str) -> None:
    said = program(f"""
here, pid = start(parked)
here.send_raw(control.encode({order}))
print(here.receive(), end(here, pid))
""")

    assert said.splitlines() == ["recvmsg(the keeper's control channel): EPROTO: protocol error", "None 256"]


def test_many_at_once_and_their_ends_in_any_order() -> None:
    said = program("""
here, pid = start(parked)
init, _ = runner(here)
before = held_by(pid)
pipes = {number: begin(here, init, number, Command((b"/bin/sh", b"-c", b"exit %d" % number), {}, b"/"))
         for number in range(2, 32)}
ends = {}
while len(ends) < 30:
    message, fds = here.receive()
    for fd in fds:
        os.close(fd)
    if isinstance(message, control.Exited):
        ends[message.process] = message.status >> 8
print(all(number == status for number, status in ends.items()), comes_to(before, pid), end(here, pid))
""")

    assert "True True 0\n" == said
