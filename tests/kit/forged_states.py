"""
Code for a kernel whose snapshots are forged: its child does something else than to write its state, or spoils that.

It reaches into leeward's module in its own process, as any job may.
"""

from __future__ import annotations

#: In the kernel: its child does this in place of writing the state.
FORGED = """
import array, itertools, mmap, os, random, socket, struct, sys
frame = sys._getframe()
while "snapshots" not in frame.f_globals:
    frame = frame.f_back
snapshots = frame.f_globals["snapshots"]
def given(orders):
    sock = socket.socket(fileno=os.dup(orders))
    _, fds, _, _ = socket.recv_fds(sock, 1, 1)
    return fds[0]
def own(native, scratch):
    "The true state of this process, as bytes; in a copy, what its loader was told."
    near, far = socket.socketpair()
    read, write = os.pipe()
    if not (child := os.fork()):
        return native.dump(far.fileno(), write, scratch, -1, -1, -1)
    size = struct.unpack("q", os.read(read, 8))[0]
    file = os.memfd_create("own")
    os.ftruncate(file, size)
    socket.send_fds(near, [b"x"], [file])
    found = os.pread(file, struct.unpack("q", os.read(read, 8))[0], 0)
    os.waitpid(child, 0)
    return found
def tell(answers, *numbers):
    os.write(answers, b"".join(struct.pack("q", each) for each in numbers))
facts_of = snapshots.facts_of = getattr(snapshots, "facts_of", snapshots._facts)
turns = itertools.count(1)
turn = 0  # snapshots that this kernel has been asked for
def count(lost):
    global turn
    turn = next(turns)
    return b""  # the child tells its own
snapshots._facts = count
def hostile(others, ours, scratch, native):
    if os.fork():
        os._exit(0)
    gate, number, orders, answers, *_ = ours
    os.write(number, struct.pack("q", os.getpid()))
    for fd in others:
        os.close(fd)
    os.read(gate, 1)
    facts = facts_of([])
    try:
        ATTACK
    except BaseException:
        pass
    os._exit(0)
snapshots._become_state = hostile
"""

#: The true state is taken once: to take it again would cost more than all else.
SPOILED = """
        if not os.path.exists(TRUE):
            content = own(native, scratch)
            if isinstance(content, int):
                return content
            with open(TRUE, "wb") as file:
                file.write(content)
        size = [os.stat(TRUE).st_size]
        whole = -(-size[0] // 4096) * 4096
        os.write(answers, facts)
        tell(answers, whole)
        file = given(orders)
        with open(TRUE, "rb") as true, mmap.mmap(true.fileno(), 0, prot=mmap.PROT_READ) as content:
            os.pwrite(file, content, 0)
        with mmap.mmap(file, whole) as content:
            SPOIL
        tell(answers, size[0])
        try:
            os.read(orders, 1)
            os.pwrite(file, b"late", 0)
        except OSError:
            pass
"""
#: How the bytes of a true state are spoiled, by a random generator *r*; `size[0]` of them are its.
SPOILS = {
    "flips": "for _ in range(r.randrange(1, 64)): content[r.randrange(size[0])] ^= 1 << r.randrange(8)",
    "tables": "for _ in range(16): content[size[0] - r.randrange(1, 1 << 15)] = r.randrange(256)",
    "head": "for _ in range(4): content[r.randrange(8, 200)] = r.randrange(256)",
    "pages": "at = r.randrange(size[0] // 4096) * 4096; content[at:at + 4096] = r.randbytes(4096)",
    "cut": "size[0] = r.randrange(4096, size[0])",
    "noise": "size[0] = 1 << 16; content[:1 << 16] = r.randbytes(1 << 16)",
}


def forged(attack: str) -> str:
    """Code by which the children of this kernel do *attack*; `given`, `own`, `tell` and the arguments are its names."""
    return FORGED.replace("ATTACK", attack)


def spoiled(how: str, seed: int | str = 0) -> str:
    """
    Code by which each snapshot of this kernel is its true state when the first one was taken, spoiled as *how* says by
    numbers of *seed* and of its turn, from 0.
    """
    return forged(SPOILED.replace("SPOIL", f"r = random.Random(f'{seed} {{turn}}')\n            {how}").replace(
        "TRUE", repr("/dev/shm/true")))


#: For `spoiled`: each snapshot in another one of all ways.
ANY = f"exec(r.choice({[*SPOILS.values()]!r}))"
