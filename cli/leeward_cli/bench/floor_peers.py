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


#: Of each group of a keeper's jobs, version 1: a limit, and what is read at a job's end.
GROUPS = {"memory": ("memory.limit_in_bytes", "268435456", "memory.max_usage_in_bytes", "memory.oom_control"),
          "pids": ("pids.max", "32", "pids.events"), "cpuacct": ("cpuacct.usage", "0", "cpuacct.usage")}
#: As in floor_jobs.c: keepers, the first descriptor of a group's file, and the number of them that a job is written into.
KEEPERS, FIRST_FILE, JOINED = 8, 100, len(GROUPS)


def groups(number: int) -> tuple[list[str], list[str]]:
    """Make the groups of a keeper. Returns them, and the paths of their files for lw_floor_jobs; none without version 1."""
    with open("/proc/self/cgroup") as rows:
        own = {name: path for _, names, path in (row.strip().split(":", 2) for row in rows) for name in names.split(",")}
    made, joined, read = list[str](), list[str](), list[str]()
    with contextlib.suppress(OSError, KeyError):
        for name, (limit, value, *counters) in GROUPS.items():
            folder = f"/sys/fs/cgroup/{name}{own[name]}/floor-{os.getpid()}-{number}"
            os.mkdir(folder)
            made.append(folder)
            with open(f"{folder}/{limit}", "w") as file:
                file.write(value)
            joined.append(f"{folder}/tasks")
            read += [f"{folder}/{counter}" for counter in counters]
        return made, joined + read
    return made, []


def jobs(client: int) -> None:
    """Run each message in a process as a job's, by lw_floor_jobs, which alone returns there, with the code."""
    import ctypes  # here, so that the interpreter of `fork` has as few modules as possible

    made, files = zip(*map(groups, range(KEEPERS)), strict=True)
    numbers: list[int] = []
    for path in [path for each in files for path in each]:
        fd = os.open(path, os.O_WRONLY if path.endswith("tasks") else os.O_RDONLY)
        numbers.append(os.dup2(fd, FIRST_FILE + len(numbers), inheritable=False))
        os.close(fd)
    code = ctypes.create_string_buffer(MOST)
    exec(compile("print(end='')", "<warm>", "exec"), {})
    size = ctypes.PyDLL(sys.argv[2]).lw_floor_jobs(client, (ctypes.c_int * (KEEPERS * 7))(*numbers), code)
    if size > 0:
        exec(compile(code.raw[:size], "<string>", "exec"), {"__name__": "__main__"})
        sys.stdout.flush()
        os._exit(0)
    for path in (path for each in made for path in each):
        os.rmdir(path)
    os._exit(size < 0)


def run(client: int) -> None:
    """Run each message as code in this interpreter, which stays, and write what it printed to descriptor 1."""
    while code := os.read(client, MOST):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        os.write(1, printed.getvalue().encode())


if __name__ == "__main__":
    {"two": two, "four": four, "fork": fork, "jobs": jobs, "run": run}[sys.argv[1]](0)
