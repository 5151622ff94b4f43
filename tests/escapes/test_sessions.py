"""
Escapes from a session: into another one, past its end, and out of its own pipes.

A session's process runs job after job of one client, so what it can spoil is its own next job. What must hold: no
other client's session can be named or reached, nothing is left when it ends, and the daemon isn't confused.
"""

from __future__ import annotations

import secrets
import select

import pytest

from kit.box import PATIENCE_S, control, run_outside
from kit.sessions import Peer, Wire

BY_THE_DAEMON = pytest.mark.no_single_lock("the daemon's books say whose a session is, and no lock of a job could")


#: A job of a session, so that later ones can wait for an interrupt, which is `told`.
LISTENS = "import signal, time\ntold = []\nsignal.signal(signal.SIGINT, lambda *_: told.append(1))"


def tell(peer: Peer, session: int) -> None:
    """Interrupt the job that runs, which has begun by then."""
    while not peer.ask("interrupt", session=session)["interrupted"]:
        pass  # each is an answer of the daemon's


@pytest.mark.smoke
@BY_THE_DAEMON
def test_c167_a_session_of_another_connection_cannot_be_named(wire: Wire):
    """Its number is tried by each operation; so are all others that come near."""
    owner, guesser = wire.peer(), wire.peer()
    number = owner.open()
    secret = secrets.token_hex(16)
    owner.run(number, f"secret = {secret!r}")
    with control():  # its owner sees it
        assert f"{secret}\n".encode() == owner.run(number, "print(secret)")["stdout"]

    owner.run(number, LISTENS)
    running = owner.send("execute", session=number, code=b"while not told: time.sleep(0.01)\nprint(secret)")
    for guess in (*range(1, 40), number, 2**53 - 1):
        for op, more in (("execute", {"code": b"print(secret)"}), ("interrupt", {}), ("session_reset", {}),
                         ("session_close", {})):
            answer = guesser.ask(op, session=guess, **more)
            assert "session_over" == answer["kind"], (op, guess, answer)

    assert not owner.has(running)
    tell(owner, number)
    assert f"{secret}\n".encode() == owner.wait(running)["ok"]["stdout"]


@BY_THE_DAEMON
def test_c167_a_job_for_an_ended_session_is_refused(wire: Wire):
    """By its number, also when its worker has a new session: on this connection, and on the next."""
    peer = wire.peer()
    first = peer.open()
    peer.run(first, "kept = 'state of the first'")
    with control():  # before its end it is there
        assert b"state" in peer.run(first, "print(kept)")["stdout"]
    assert {} == peer.ask("session_close", session=first)
    second = peer.open()

    assert first != second
    assert "session_over" == peer.run(first, "print(kept)")["kind"]
    assert "session_over" == peer.ask("session_reset", session=first)["kind"]
    got = peer.run(second, "import gc, os; print([o for o in gc.get_objects() if o == 'state of the first'], "
                           "'kept' in globals(), os.listdir('/workspace'))")
    assert b"[] False []\n" == got["stdout"]


@BY_THE_DAEMON
def test_c167_two_requests_at_once(wire: Wire):
    """The second is told so, and the first isn't harmed."""
    peer = wire.peer()
    number = peer.open()
    peer.run(number, LISTENS)
    slow = peer.send("execute", session=number, code=b"while not told: time.sleep(0.01)\nprint('slow')")

    assert "busy" == peer.run(number, "print('quick')")["kind"]
    tell(peer, number)
    assert b"slow\n" == peer.wait(slow)["ok"]["stdout"]
    with control():  # after it there is room
        assert b"quick\n" == peer.run(number, "print('quick')")["stdout"]


@BY_THE_DAEMON
@pytest.mark.parametrize("how", ["interrupt", "kill"])
def test_c238_a_job_of_another_connection_cannot_be_ended(wire: Wire, how: str):
    """By its request's number, in no way."""
    owner, stranger = wire.peer(), wire.peer()
    running = owner.send("execute", code=b"import time; time.sleep(60)")
    wire.until(lambda: bool(wire.box.engine.main.pool.running))  # one that waits for a worker ends in another way
    for number in range(1, 40):
        assert {"cancelled": False} == stranger.ask("cancel", target=number, **{how: True})
    assert not owner.has(running)

    with control():  # its owner's can
        owner.ask("cancel", target=running, **{how: True})
        assert owner.wait(running)["ok"]["exit_code"] in (130, 137)


LEAVE = """
import os, subprocess, threading, time, socket
open('/workspace/left', 'w').write('left')
server = socket.socket(socket.AF_UNIX); server.bind(chr(0) + 'left'); server.listen()
if os.fork() == 0:
    os.setsid()
    while True: time.sleep(60)
threading.Thread(target=lambda: [time.sleep(0.001) for _ in iter(int, 1)], daemon=True).start()
print(len([n for n in os.listdir('/proc') if n.isdigit()]), len(open('/proc/self/net/unix').readlines()) - 1)
"""


@pytest.mark.no_single_lock("a process, namespaces and mounts of its own: it takes all of them")
@pytest.mark.parametrize("end", ["client", "close", "reset"])
def test_c167_an_ended_session_leaves_no_process_file_or_socket(wire: Wire, end: str):
    """The client vanishes, while a job runs or not; it closes; it resets."""
    peer, other = wire.peer(), wire.peer()
    number = peer.open()
    said = peer.run(number, LEAVE)
    with control():  # inside it is all there
        assert b"3 1\n" == said["stdout"], said
    pids = [runner.pid for worker in wire.box.engine.main.pool.workforce.workers for runner in worker.arming.runners.values()
            if runner is worker.leasing.running]
    if "client" == end:
        peer.send("execute", session=number, code=b"import time; time.sleep(60)")
        wire.box.reactor.turn(0.1)
        peer.close()
    elif "close" == end:
        peer.ask("session_close", session=number)
    else:
        assert {} == peer.ask("session_reset", session=number)
        assert b"[] False\n" == peer.run(number, "import os; print(os.listdir('/workspace'), 'server' in globals())")[
            "stdout"]
        peer.ask("session_close", session=number)
    wire.box.settle()

    left = {runner.pid for worker in wire.box.engine.main.pool.workforce.workers for runner in worker.arming.runners.values()}
    assert [] == [pid for pid in pids if pid in left]
    look = b"""\
import os
print(len([n for n in os.listdir('/proc') if n.isdigit()]), os.listdir('/workspace'),
      len(open('/proc/self/net/unix').readlines()) - 1)
"""
    for _ in range(4):
        assert b"2 [] 0\n" == other.ask("execute", code=look)["stdout"]
    assert 0 == wire.box.engine.main.pool.sessions


@pytest.mark.no_single_lock("a process, namespaces and mounts of its own: it takes all of them")
def test_c167_two_sessions_do_not_see_each_other(wire: Wire):
    peer, other = wire.peer(), wire.peer()
    ours, theirs = peer.open(), other.open()
    secret = secrets.token_hex(16)
    peer.run(ours, f"import os, builtins\nbuiltins.shared = {secret!r}\nopen('/workspace/s', 'w').write(shared)\n"
                   f"os.environ['S'] = shared\nopen('/dev/shm/s', 'w').write(shared)")
    look = """
import builtins, os
print(hasattr(builtins, 'shared'), os.listdir('/workspace'), os.listdir('/dev/shm'), 'S' in os.environ,
      sorted(n for n in os.listdir('/proc') if n.isdigit()))
"""

    with control():  # its own does
        assert b"True ['s'] ['s'] True ['1', '2']\n" == peer.run(ours, look)["stdout"]
    assert b"False [] [] False ['1', '2']\n" == other.run(theirs, look)["stdout"]


CHATTER = """
import os, threading, time
said = 0
def chatter():
    global said
    while True:
        time.sleep(0.001)
        os.write(1, b"late\\n")
        said += 1
threading.Thread(target=chatter, daemon=True).start()
"""


@pytest.mark.no_single_lock("pipes of its own: no other session or job has their ends")
def test_c093_late_output_is_the_next_jobs_of_the_same_session_alone(wire: Wire):
    """A thread writes on. What it wrote meanwhile comes with the next job's output, never in another client's."""
    peer, other = wire.peer(), wire.peer()
    chatty, quiet = peer.open(), other.open()
    peer.run(chatty, CHATTER)
    listen = "was = said\nwhile said < was + 2: time.sleep(0.001)\nprint('own')"
    later = [peer.run(chatty, listen)["stdout"] for _ in range(3)]
    with control():  # it does write
        assert all(b"late\n" in said and b"own\n" in said for said in later)

    for number in range(10):
        assert f"{number}\n".encode() == other.run(quiet, f"print({number})")["stdout"]
    peer.ask("session_close", session=chatty)
    for number in range(10):
        assert f"{number}\n".encode() == other.ask("execute", code=f"print({number})".encode())["stdout"]


#: Calls flood once its job is over: the main thread reads the next one's frame.
BETWEEN = """
def wait():
    while "_read" != sys._current_frames()[threading.main_thread().ident].f_code.co_name:
        time.sleep(0.001)
    flood()
threading.Thread(target=wait, daemon=True).start()
"""


@pytest.mark.no_single_lock("pipes of its own: no other session or job has their ends")
def test_c093_a_flood_between_jobs_waits_in_its_pipe(wire: Wire):
    """Nobody reads it, so it costs the daemon nothing: 64 KiB, then who writes waits."""
    peer = wire.peer()
    number = peer.open(limits={"output": 1 << 20})
    flood = "import os, sys, threading, time\ndef flood():\n    while True: os.write(1, b'x' * 4096)\n"
    with control():
        assert "x" * 65536 in run_outside(flood.replace("while True", "for _ in range(100)") + "flood()")
    peer.run(number, flood + BETWEEN)
    runner = next(worker.leasing.running for worker in wire.box.engine.main.pool.workforce.workers if worker.busy)
    assert runner is not None
    begun = select.poll()
    begun.register(runner.out, select.POLLIN)
    assert begun.poll(PATIENCE_S * 1000)

    got = peer.run(number, "print('own')")

    # As much as was in the pipe, and what was written while the job ran.
    assert "finished" == got["outcome"]
    length = got["stdout"][2] if isinstance(got["stdout"], list) else len(got["stdout"])
    assert length >= 4096  # a user with many pipes gets narrow ones


FORGE = """
import os
FRAME = bytes.fromhex({frame!r})
os.write(4, FRAME)
"""


def nothing_to_tell() -> bytes:
    from leeward.wire.job_frames import NOTHING_FRAME

    return NOTHING_FRAME


@BY_THE_DAEMON
@pytest.mark.parametrize("forged", [b"\xff" * 8, b"\0\0\0\1\xc1", b"\0\0\0\0", nothing_to_tell() * 3, b"\0\0\0\5\x91"],
                         ids=["too long", "no map", "empty", "ends of jobs to come", "half"])
def test_c113_a_forged_end_is_the_forgers_own(wire: Wire, forged: bytes):
    """A job may lie about its own end, and its session may be over for it; other clients see nothing."""
    peer, other = wire.peer(), wire.peer()
    number, quiet = peer.open(limits={"time": 1.0}), other.open()
    other.run(quiet, "x = 1")
    with control():  # before, all is well
        assert b"1\n" == peer.run(number, "print(1)")["stdout"]

    peer.run(number, FORGE.format(frame=forged.hex()))
    for _ in range(4):
        answer = peer.run(number, "print(2)")
        assert answer.get("kind", answer.get("outcome")) in ("finished", "internal", "timed_out", "session_over")
    assert b"1\n" == other.run(quiet, "print(x)")["stdout"]
    assert {} == peer.ask("session_reset", session=number)
    assert b"3\n" == peer.run(number, "print(3)")["stdout"]


@BY_THE_DAEMON
def test_c166_a_job_that_reads_its_own_job_pipe_gets_its_own_clients_jobs_alone(wire: Wire):
    """A thread steals every frame that comes. Its session hangs until a limit ends it; nobody else's code is there."""
    peer, other = wire.peer(), wire.peer()
    number, quiet = peer.open(limits={"time": 0.5}), other.open()
    peer.run(number, "import os, threading\nstolen = []\n"
                     "def steal():\n    while True: stolen.append(os.read(3, 65536)); os.write(1, stolen[-1])\n"
                     "threading.Thread(target=steal, daemon=True).start()")
    said = [other.run(quiet, f"'token {n}'; print({n})")["stdout"] for n in range(5)]
    answer = peer.run(number, "'my own'")

    assert [f"{n}\n".encode() for n in range(5)] == said
    assert b"token" not in answer["stdout"]
    with control():  # or the thread came too late
        assert "timed_out" == answer["outcome"] or b"" == answer["stdout"]
    assert b"5\n" == other.run(quiet, "print(5)")["stdout"]


def locks_of(peer: Peer, session: int) -> bytes:
    told: bytes = peer.run(session, LOCKS)["stdout"]
    return told


LOCKS = """
import ctypes, os, resource
libc = ctypes.CDLL(None, use_errno=True)
for line in open('/proc/self/status'):
    if line.split(':')[0] in ('CapEff', 'CapBnd', 'Seccomp', 'NoNewPrivs', 'Uid', 'Gid'): print(line.split())
print(libc.chroot(b'/'), ctypes.get_errno(), libc.unshare(0x10000000), os.access('/etc/shadow', os.F_OK))
print([resource.getrlimit(n) for n in range(16)], sorted(os.listdir('/')),
      len(open('/proc/self/mountinfo').readlines()))
"""


@pytest.mark.smoke
@pytest.mark.no_single_lock("it compares all of them with those of a plain job")
def test_c167_a_sessions_jobs_have_the_locks_of_any_other(wire: Wire):
    """In its first job and in a later one."""
    peer = wire.peer()
    number = peer.open()
    plain = peer.ask("execute", code=LOCKS.encode())["stdout"]
    with control():  # it tells of them
        assert b"'NoNewPrivs:', '1'" in plain
    assert "'NoNewPrivs:', '1'" not in run_outside(LOCKS)

    assert plain == locks_of(peer, number) == locks_of(peer, number)
