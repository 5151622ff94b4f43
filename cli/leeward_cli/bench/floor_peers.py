"""
The other ends of the floors, run as a script with a socket as descriptor 0.

Runs in:   processes of their own, by `python -I -S`: with few modules, since the floors are the least possible costs.
"""

import contextlib
import io
import os
import signal
import sys

#: Bytes of one read, more than any message has.
MOST = 4096


def two(client: int) -> None:
    """Send each message back, without a worker."""
    while message := os.read(client, MOST):
        os.write(client, message)


def four(client: int) -> None:
    """Pass each message on to a worker and its answer back, as the daemon does: a socket on one side, pipes on the other."""
    down, up = os.pipe(), os.pipe()
    if os.fork() == 0:
        os.close(down[1])
        os.close(client)
        while message := os.read(down[0], MOST):
            os.write(up[1], message)
        os._exit(0)
    os.close(down[0])
    while message := os.read(client, MOST):
        os.write(down[1], message)
        os.write(client, os.read(up[0], MOST))


def fork(client: int) -> None:
    """Fork for each message, run it as code, and answer with what it printed. There is no isolation."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    exec(compile("print(end='')", "<warm>", "exec"), {})
    while code := os.read(client, MOST):
        if os.fork() == 0:
            sys.stdout = io.StringIO()
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
            os.write(client, sys.stdout.getvalue().encode())
            os._exit(0)


def confined(client: int) -> None:
    """As `fork`, in new namespaces with /proc and /tmp, under a filter of 300 instructions; nothing else of a sandbox."""
    import ctypes  # here, so that the interpreter of `fork` has as few modules as possible
    from array import array

    libc = ctypes.PyDLL(None, use_errno=True)
    new_user, new_ns, new_each = 0x10000000, 0x00020000, 0x20000000 | 0x00020000 | 0x08000000 | 0x04000000
    private, nosuid_nodev_noexec = 0x44000, 14
    clone = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
    # Load the call's number, compare it with 298 numbers that no call has, and allow the call.
    lines = [(0x20, 0, 0, 0), *((0x15, 0, 0, 10_000 + number) for number in range(298)), (0x06, 0, 0, 0x7FFF0000)]
    packed = b"".join(array("H", line[:1]).tobytes() + bytes(line[1:3]) + array("I", line[3:]).tobytes()
                      for line in lines)
    code_of_filter = ctypes.create_string_buffer(packed, len(packed))

    class SockFprog(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("lines", ctypes.c_void_p))

    program = SockFprog(len(lines), ctypes.addressof(code_of_filter))

    def done(result: int) -> None:
        if result < 0:
            os.write(client, f"refused: {os.strerror(ctypes.get_errno())}".encode())
            os._exit(1)

    identity = os.getuid(), os.getgid()
    done(libc.unshare(new_ns | (new_user if identity[0] else 0)))
    if identity[0]:
        for name, said in (("setgroups", "deny"), ("uid_map", f"0 {identity[0]} 1"), ("gid_map", f"0 {identity[1]} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(said)
    done(libc.mount(b"none", b"/", None, private, None))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    exec(compile("print(end='')", "<warm>", "exec"), {})
    while code := os.read(client, MOST):
        if libc.syscall(clone, new_each | signal.SIGCHLD, 0, 0, 0, 0) == 0:
            done(libc.mount(b"proc", b"/proc", b"proc", nosuid_nodev_noexec, None))
            done(libc.mount(b"tmpfs", b"/tmp", b"tmpfs", nosuid_nodev_noexec, None))
            done(libc.prctl(38, 1, 0, 0, 0))  # PR_SET_NO_NEW_PRIVS
            done(libc.prctl(22, 2, ctypes.byref(program), 0, 0))  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
            sys.stdout = io.StringIO()
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
            os.write(client, sys.stdout.getvalue().encode())
            os._exit(0)


def run(client: int) -> None:
    """Run each message as code in this interpreter, which stays, and write what it printed to descriptor 1."""
    while code := os.read(client, MOST):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        os.write(1, printed.getvalue().encode())


if __name__ == "__main__":
    {"two": two, "four": four, "fork": fork, "confined": confined, "run": run}[sys.argv[1]](0)
