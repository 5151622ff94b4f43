"""The state of a process as bytes and back, without a sandbox: what is loaded, and what is refused with nothing changed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.needs("x86-64")

#: `taken()` gives a memory file with the state in the process itself, and None in copies; `loaded(file)` what a copy says.
HELP = """
import ctypes, errno, mmap, os, socket, struct, sys
from leeward._native import state

def taken(scratch=0):
    near, far = socket.socketpair()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        return "copy", state.dump(far.fileno(), write, scratch)
    number, = struct.unpack("q", os.read(read, 8))
    if number > 0:
        file = os.memfd_create("state")
        os.ftruncate(file, number)
        socket.send_fds(near, [b"x"], [file])
        number, = struct.unpack("q", os.read(read, 8))
    if number < 0:
        return errno.errorcode[-number], os.read(read, 256).partition(b"\\0")[0].decode()
    os.waitpid(child, 0)
    os.ftruncate(file, number + (1 << 40))
    return "taken", file

def loaded(file, word=0):
    sys.stdout.flush()
    child = os.fork()
    if not child:
        try:
            state.load(file, -1, word)
        except OSError as error:
            print(errno.errorcode[error.errno], error.filename)
            sys.stdout.flush()
            os._exit(1)
    return os.waitpid(child, 0)[1]
"""


def ran(code: str) -> str:
    """What *code* prints in a process of its own."""
    done = subprocess.run([sys.executable, "-c", HELP + code], capture_output=True, text=True, check=False, timeout=60)
    assert 0 == done.returncode, (done.stdout, done.stderr)
    return done.stdout


def test_a_copy_goes_on_and_may_be_taken_again() -> None:
    """With its word; a process that isn't its child is another one."""
    assert "went on 7 True\nagain 8 True\n" == ran("""
me, numbers = os.getpid(), list(range(100_000))
how, what = taken()
if how == "copy":
    print("went on", what, os.getpid() != me and numbers[-1] == 99_999, flush=True)
    me = os.getpid()
    how, what = taken()
    if how == "copy":
        print("again", what, os.getpid() != me and sum(numbers) == 4_999_950_000, flush=True)
        os._exit(0)
    os._exit(loaded(what, 8))
assert 0 == loaded(what, 7)
""")


def test_memory_of_every_kind_comes_back(tmp_path: Path) -> None:
    """Without rights, executable, of files with changes, of files that only the sandbox has, grown by the system later."""
    (tmp_path / "file").write_bytes(b"a" * 8192)
    assert "True\n" * 5 == ran(f"""
path = {str(tmp_path / 'file')!r}
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
def mapped(size, rights, flags=0x22, fd=-1):
    return libc.mmap(None, ctypes.c_size_t(size), rights, flags, fd, ctypes.c_long(0))
none = mapped(4096, 3)
ctypes.memmove(none, b"hidden", 6)
libc.mprotect(ctypes.c_void_p(none), ctypes.c_size_t(4096), 0)
code = mapped(4096, 7)
ctypes.memmove(code, b"\\xb8\\x2a\\0\\0\\0\\xc3", 6)
with open(path, "r+b") as file:
    changed = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
changed[:3] = b"new"
big = bytearray(1 << 20)
how, what = taken()
if how == "copy":
    libc.mprotect(ctypes.c_void_p(none), ctypes.c_size_t(4096), 1)
    print(b"hidden" == ctypes.string_at(none, 6))
    print(42 == ctypes.CFUNCTYPE(ctypes.c_int)(code)())
    print(b"newaa" == changed[:5] and b"a" == changed[5000:5001])
    big.extend(bytes(64 << 20))
    print(65 << 20 == len(big) and not any(big[:1 << 20]))
    print(b"a" * 8192 == open(path, "rb").read(), flush=True)
    os._exit(0)
assert 0 == loaded(what)
""")


def test_memory_that_is_only_reserved_is_not_read() -> None:
    """And nothing of the process that writes is in the copy."""
    assert "True True True\n" == ran("""
def size():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * 4096
reserved = mmap.mmap(-1, 1 << 43, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
reserved[0], reserved[1 << 20] = 1, 2
before = size()
how, what = taken()
if how == "copy":
    print(reserved[0] == 1, reserved[1 << 20] == 2, size() - before < 1 << 22, flush=True)
    os._exit(0)
assert 0 == loaded(what)
""")


def test_a_search_ends_when_nobody_waits() -> None:
    """For a page that was written and is zero again, of eight tebibytes."""
    assert "b''\n" == ran("""
reserved = mmap.mmap(-1, 1 << 43, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
reserved[0] = 1
reserved[0] = 0
near, far = socket.socketpair()
read, write = os.pipe()
child = os.fork()
if not child:
    near.close()
    os.close(read)
    state.dump(far.fileno(), write, 0)
far.close()
os.close(write)
os.read(read, 8)
os.waitpid(child, 0)
os.close(read)
near.settimeout(30)
print(near.recv(1))
""")


def test_shared_memory_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "shared").write_bytes(bytes(4096))
    said = ran(f"""
with open({str(tmp_path / 'shared')!r}, "r+b") as file:
    shared = mmap.mmap(file.fileno(), 0)
print(*taken())
""")
    assert f"ENOTSUP {tmp_path / 'shared'}\n" == said


@pytest.mark.parametrize(("change", "said"), [("os.remove(path)", "ENOENT"), ("os.utime(path, (1, 1))", "ESTALE")])
def test_a_file_that_is_missing_or_another_is_named(tmp_path: Path, change: str, said: str) -> None:
    """And the process goes on; a file of the sandbox's own is in the state."""
    (tmp_path / "file").write_bytes(b"a" * 8192)
    code = f"""
path = {str(tmp_path / 'file')!r}
with open(path, "rb") as file:
    read = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
how, what = taken(SCRATCH)
if how == "copy":
    print(bytes(read[:4]), flush=True)
    os._exit(0)
{change}
loaded(what)
"""
    assert f"{said} {tmp_path / 'file'}\n" == ran(code.replace("SCRATCH", "0"))
    (tmp_path / "file").write_bytes(b"a" * 8192)
    assert "b'aaaa'\n" == ran(code.replace("SCRATCH", "os.stat(path).st_dev"))


@pytest.mark.parametrize("spoil", ["os.pwrite(what, b'x', 0)", "os.ftruncate(what, 100)", "os.ftruncate(what, 5000)",
                                   "os.pwrite(what, b'\\xff' * 8, 16)", "os.pwrite(what, b'\\xff' * 16, 48)"])
def test_what_is_no_state_is_refused(spoil: str) -> None:
    """Before anything changed."""
    assert "EBADMSG None\n" == ran(f"""
how, what = taken()
if how == "copy":
    os._exit(0)
{spoil}
loaded(what)
""")
