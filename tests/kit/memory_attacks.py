"""
Attacks by which jobs try to have more memory than their limit: catalogue cases 53, 54 and 66.

Runs in:   the tests' process; pure data. tests/escapes/test_memory.py runs each in a sandbox, and without a driver.
"""

from __future__ import annotations

from leeward.spec.limits import MIB

#: Around an attack, which ends by a value or an error; that is what it says. What it took it has until a watch has had its
#: looks, so many seconds: it has to look within them, if it shall end the job.
AROUND = """
import ctypes, errno, fcntl, mmap, os, select, signal, socket, sys
MIB = 1 << 20
libc = ctypes.CDLL(None, use_errno=True)
def touch(where):
    for at in range(0, len(where), 4096):
        where[at] = 1
def checked(got):
    if got in (-1, None, 2**64 - 1):
        raise OSError(ctypes.get_errno(), "")
    return got
def spread(job, processes):
    "Run job in so many children, which go on holding what it took; the sum of what they return."
    read, write = os.pipe()
    for _ in range(processes):
        if 0 == os.fork():
            os.write(write, job().to_bytes(8, "big"))
            signal.pause()
    os.close(write)  # a child that fails ends, and counts as nothing
    return sum(int.from_bytes(os.read(read, 8), "big") for _ in range(processes))
def attack():
    try:
{}
    finally:
        if not sys.exc_info()[0]:
            select.select((), (), (), SECONDS)
try:
    said = attack() or "done"
except MemoryError:
    said = "MemoryError"
except OSError as error:
    said = errno.errorcode[error.errno]
os.write(1, str(said).encode())
os._exit(0)
"""

#: Case 53: what a job touches.
TOUCH = {
    "touches 600 MiB of one bytearray": "kept = bytearray(600 * MIB)\ntouch(kept)",
    "maps 600 MiB with MAP_POPULATE":
        "kept = mmap.mmap(-1, 600 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)",
    "makes 600,000 objects of 1,000 bytes": "kept = [bytes(1000) for _ in range(600_000)]",
    "touches 600 mappings of 1 MiB": """
kept = []
for _ in range(600):
    kept.append(mmap.mmap(-1, MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    touch(kept[-1])
""",
    "touches 600 MiB of code, for which RLIMIT_DATA is raised": """
libc.mmap.restype = ctypes.c_void_p
libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
start = checked(libc.mmap(None, ctypes.c_size_t(600 * MIB), 0, 0x22, -1, ctypes.c_long(0)))
checked(libc.mprotect(start, 600 * MIB, 7))
for at in range(0, 600 * MIB, MIB):
    ctypes.memset(start + at, 1, MIB)
""",
    "touches 60 MiB in each of ten processes whose names read as lines of their status": """
def job():
    libc.prctl(15, b"\\rVmSwap:-999999")  # PR_SET_NAME
    kept.append(b"x" * 60 * MIB)
    return 0
kept = []
spread(job, 10)
""",
    "touches 60 MiB in each of ten processes whose first thread has ended": """
import threading
def hold():
    while b"Z" != open(f"/proc/self/task/{os.getpid()}/stat", "rb").read().rpartition(b")")[2].split()[0]:
        select.select((), (), (), 0.001)
    kept = b"x" * 60 * MIB
    os.write(write, b"x")
    select.select((), (), ())
read, write = os.pipe()
for _ in range(10):
    if 0 == os.fork():
        threading.Thread(target=hold).start()
        libc.syscall(60 if "x86_64" == os.uname().machine else 93, 0)  # exit(2), of this thread
os.close(write)
for _ in range(10):
    os.read(read, 1)
""",
}
#: The one for which a limit is raised.
(CODE,) = (name for name in TOUCH if "RLIMIT_DATA" in name)

#: Case 54: what no resident set shows, or not that of a process which still lives; and the limit that it has.
HIDDEN: dict[str, tuple[str, int]] = {
    "fills shared memory without a name": ("kept = mmap.mmap(-1, 300 * MIB)\ntouch(kept)", 256 * MIB),
    "fills shared memory without a name in a child that ends": ("""
kept = mmap.mmap(-1, 40 * MIB)
if 0 == os.fork():
    touch(kept)
    os._exit(0)
os.wait()
more = b"x" * 40 * MIB
return f"{kept[0] * len(more) // MIB} MiB more"
""", 64 * MIB),
    "drops shared memory without a name from its table of pages": ("""
kept = mmap.mmap(-1, 40 * MIB)
touch(kept)
kept.madvise(mmap.MADV_DONTNEED)
more = b"x" * 40 * MIB
return f"{kept[0] * len(more) // MIB} MiB more"
""", 64 * MIB),
    "leaves one page mapped of each shared memory without a name": ("""
libc.mmap.restype = ctypes.c_void_p
libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
for _ in range(10):
    start = checked(libc.mmap(None, ctypes.c_size_t(10 * MIB), 3, 0x21, -1, ctypes.c_long(0)))
    ctypes.memset(start, 1, 10 * MIB)
    checked(libc.munmap(start + 4096, 10 * MIB - 4096))
""", 64 * MIB),
    "maps shared memory without a name in each of ten processes": ("""
def job():
    kept.append(mmap.mmap(-1, 20 * MIB))
    touch(kept[-1])
    kept[-1].madvise(mmap.MADV_DONTNEED)
    return 20 * MIB
kept = []
return f"{spread(job, 10) // MIB} MiB"
""", 64 * MIB),
    "maps shared memory without a name in many threads at once": ("""
import threading
def fill():
    for _ in range(10):
        kept = mmap.mmap(-1, MIB)
        touch(kept)
        kept.madvise(mmap.MADV_DONTNEED)
        filled.append(kept)
filled = []
threads = [threading.Thread(target=fill) for _ in range(16)]
[each.start() for each in threads]
[each.join() for each in threads]
return f"{len(filled)} MiB"
""", 48 * MIB),
    "fills a memfd": ("""
fd = os.memfd_create("full")
for _ in range(60):
    os.write(fd, b"x" * MIB)
""", 48 * MIB),
    "fills a memfd that is only on its way from socket to socket": ("""
ours, theirs = socket.socketpair()
fd = os.memfd_create("full")
for _ in range(40):
    os.write(fd, b"x" * MIB)
socket.send_fds(ours, [b"x"], [fd])
os.close(fd)
more = b"x" * 40 * MIB
_, (fd,), _, _ = socket.recv_fds(theirs, 1, 1)
return f"{os.fstat(fd).st_size // MIB} MiB and {len(more) // MIB}"
""", 64 * MIB),
    "fills memfds that are mapped and have no descriptor": ("""
kept = []
for _ in range(6):
    fd = os.memfd_create("full")
    os.truncate(fd, 10 * MIB)
    kept.append(mmap.mmap(fd, 10 * MIB))
    os.close(fd)
    touch(kept[-1])
    kept[-1].madvise(mmap.MADV_DONTNEED)
""", 48 * MIB),
    "fills a shared mapping of /dev/zero": ("kept = mmap.mmap(os.open('/dev/zero', os.O_RDWR), 300 * MIB)\ntouch(kept)",
                                            256 * MIB),
    "fills a System V segment": ("""
libc.shmat.restype = ctypes.c_void_p
segment = checked(libc.shmget(0, ctypes.c_size_t(300 * MIB), 0o1600))
segment_at = checked(libc.shmat(segment, None, 0))
libc.shmctl(segment, 0, None)  # IPC_RMID: it goes with this process, also where it is the host's
ctypes.memset(segment_at, 1, 300 * MIB)
""", 256 * MIB),
    "fills a file in /dev/shm": ("""
fd = os.open("/dev/shm/full", os.O_CREAT | os.O_WRONLY)
for _ in range(60):
    os.write(fd, b"x" * MIB)
""", 48 * MIB),
    "fills a deleted file that is open": ("""
fd = os.open("/tmp/full", os.O_CREAT | os.O_WRONLY)
os.unlink("/tmp/full")
for _ in range(60):
    os.write(fd, b"x" * MIB)
""", 48 * MIB),
    "fills a thousand pipes": ("""
def job():
    size = 0
    for _ in range(120):
        kept.append(os.pipe())
        os.set_blocking(kept[-1][1], False)
        try:
            while True:
                size += os.write(kept[-1][1], b"x" * 4096)
        except BlockingIOError:
            pass
    return size
kept = []
# What one user's pipes may hold before new ones hold a page or two: fs.pipe-user-pages-soft, 64 MiB.
return f"{-(-spread(job, 8) // (64 * MIB)) * 64} MiB beyond its limit"
""", 64 * MIB),
    "fills socket buffers": ("""
def job():
    for _ in range(110):
        pair = socket.socketpair()
        kept.append(pair)
        for end in pair:
            end.setblocking(False)
            try:
                while True:
                    end.send(b"x" * 65536)
            except BlockingIOError:
                pass
    return 0
kept = []
spread(job, 8)
""", 64 * MIB),
    "makes page tables for memory that it only reads": ("""
libc.mmap.restype = ctypes.c_void_p
size, MAP_NORESERVE, MADV_NOHUGEPAGE = 64 << 30, 0x4000, 15
start = checked(libc.mmap(None, ctypes.c_size_t(size), mmap.PROT_READ,
                          mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE, -1, ctypes.c_long(0)))
libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), MADV_NOHUGEPAGE)
for at in range(0, size, 2 * MIB):
    ctypes.c_ubyte.from_address(start + at).value
""", 32 * MIB),
    "makes page tables by moving one page": ("""
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
libc.mremap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
size, READ, MAP_FIXED, MAP_NORESERVE = 64 << 30, mmap.PROT_READ, 0x10, 0x4000
KIND = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
start = checked(libc.mmap(None, size, READ, KIND, -1, 0))
page = checked(libc.mmap(None, 4096, 3, KIND, -1, 0))
ctypes.memset(page, 1, 1)
for at in range(start + 4096, start + size, 2 * MIB):
    checked(libc.mremap(page, 4096, 4096, 3, at))
    if page > start:  # what is beside the page keeps its table
        checked(libc.mmap(page, 4096, READ, KIND | MAP_FIXED, -1, 0))
    page = at
""", 32 * MIB),
}

#: Case 66: what the kernel keeps for a job beside its memory.
KERNEL: dict[str, tuple[str, int]] = {
    "registers 90,000 epoll watches": ("""
def job():
    kept.append(([select.epoll() for _ in range(122)], [os.eventfd(0) for _ in range(123)]))
    for epoll in kept[0][0]:
        for event in kept[0][1]:
            epoll.register(event)
    return 122 * 123
kept = []
return f"{spread(job, 6) * 200 // MIB} MiB beyond its limit"  # 200 bytes each: an epitem and an eppoll_entry
""", 20 * MIB),
}

#: The attacks that the driver alone doesn't stop: the lock that is needed beside it, and why.
BESIDE: dict[str, tuple[tuple[str, ...], str]] = {
    "fills a System V segment":
        (("seccomp",), "where nothing counts such memory, the supervisor charges it"),
    **dict.fromkeys((name for name in HIDDEN if "without a name" in name or "memfd" in name),
                    (("seccomp", "mounts"), "where nothing counts it, the supervisor charges it or gives a file")),
    "fills a shared mapping of /dev/zero":
        (("landlock",), "where nothing counts such memory, it is a rule that refuses the device"),
    **dict.fromkeys(("fills a file in /dev/shm", "fills a deleted file that is open"),
                    (("mounts",), "the file has to be on the job's own disk and not on the host's")),
    "fills socket buffers": (("namespaces",), "a watch counts the sockets of the job's own network namespace"),
}

#: The output of the attacks that succeed in more than one step.
BEYOND = {
    "fills a thousand pipes": "64 MiB beyond its limit",
    "fills shared memory without a name in a child that ends": "40 MiB more",
    "drops shared memory without a name from its table of pages": "40 MiB more",
    "maps shared memory without a name in each of ten processes": "200 MiB",
    "maps shared memory without a name in many threads at once": "160 MiB",
    "fills a memfd that is only on its way from socket to socket": "40 MiB and 40",
}
