"""
The other ends of the floors: run as a script by its path, with a socket as descriptor 0.

Runs in:   processes of their own, `python -I -S`: an interpreter with little in it, since
           what is measured is the least that anybody would pay.
"""

import contextlib
import io
import os
import signal
import sys

#: Bytes; more than any message here.
MOST = 4096


def two(client: int) -> None:
    """
    There and back, without a worker.
    """
    while message := os.read(client, MOST):
        os.write(client, message)


def four(client: int) -> None:
    """
    Stand where the daemon stands: socket on one side, a worker's pipes on the other.
    """
    down, up = os.pipe(), os.pipe()
    if 0 == os.fork():
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
    """
    Fork for each message, run it as code, answer with what it printed. No isolation at all.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    exec(compile("print(end='')", "<warm>", "exec"), {})
    while code := os.read(client, MOST):
        if 0 == os.fork():
            sys.stdout = io.StringIO()
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
            os.write(client, sys.stdout.getvalue().encode())
            os._exit(0)


def run(client: int) -> None:
    """
    Run each message as code, in this interpreter, which stays; answer on descriptor 1 with what it printed.
    """
    while code := os.read(client, MOST):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        os.write(1, printed.getvalue().encode())


if __name__ == "__main__":
    {"two": two, "four": four, "fork": fork, "run": run}[sys.argv[1]](0)
