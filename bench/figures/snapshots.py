"""
Snapshots of kernels: taken, rolled back to, copied a hundred times; and environments whose jobs begin as copies.

LEEWARD_BENCH_ENVIRONMENT names a virtual environment with pandas, which some rows need.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.figures.row import FigureSettings, Row, absolute, compared, missing, spread
from leeward.base.closing import OwnedFd
from leeward.client.blocking import Client
from leeward.client.process import Kernel
from leeward.client.sandbox import Sandbox
from leeward.client.snapshot import Snapshot
from leeward_cli.bench.ours import daemon, good

_MIB = 1 << 20
#: Objects of a kilobyte each: 200 MB that a copy's garbage collector doesn't walk.
_BIG = "big = [bytes([number % 256]) * 1000 for number in range(200_000)]"
_SMALLER = _BIG.replace("200_000", "45_000")
_COPIES = 100
_AT_ONCE = 4
_SLEEPERS = 10_000


def measure(settings: FigureSettings) -> Sequence[Row]:
    return [*_of("an empty kernel", "import os", settings, 8, 6, 15), *_pandas(settings),
            *_copies(settings), *_files(settings), *_asleep(settings), *_warm(settings)]


def _forked(memory: mmap.mmap) -> tuple[float, float]:
    """
    What no snapshot of so much memory can do without, to compare it with on a busy machine: seconds of making as many small
    pages of a memory file, and of a fork that writes them.
    """
    with OwnedFd(os.memfd_create("floor")) as file:
        begin = time.perf_counter()
        os.posix_fallocate(file, 0, len(memory))
        made = time.perf_counter()
        if not (child := os.fork()):
            os.pwrite(file, memory, 0)
            os._exit(0)
        os.waitpid(child, 0)
        return made - begin, time.perf_counter() - made


def _files(settings: FigureSettings) -> Sequence[Row]:
    saved: list[list[float]] = []
    loaded: list[list[float]] = []
    with _sandbox() as box, tempfile.TemporaryDirectory(prefix="leeward-figures-") as folder:
        kernel = box.kernel()
        good(kernel.execute(_SMALLER, timeout=60))
        with kernel.snapshot() as snapshot:
            for _ in range(settings.some(10)):
                begin = time.perf_counter()
                snapshot.save(f"{folder}/state")
                written = time.perf_counter()
                with Snapshot.load(f"{folder}/state", box.socket) as again, box.kernel(snapshot=again):
                    loaded.append([time.perf_counter() - written])
                saved.append([written - begin])
    return [absolute("a state of 50 MB written into a file", saved, "ms", None, "and synced"),
            absolute("a kernel from that file", loaded, "ms", None, "loaded, and the kernel is there")]


def _asleep(settings: FigureSettings) -> Sequence[Row]:
    """Sandboxes that sleep on disk: how long one takes to fall asleep and to wake, and what many take while they sleep."""
    slept: list[list[float]] = []
    woken: list[list[float]] = []
    with tempfile.TemporaryDirectory(prefix="leeward-figures-") as folder, \
            _sandbox(f'sleep_folder = "{folder}/sleep"\n') as box:
        kernel = box.kernel()
        good(kernel.execute(_SMALLER, timeout=60))
        for _ in range(settings.some(20)):
            begin = time.perf_counter()
            box.pause()
            asleep = time.perf_counter()
            good(kernel.execute("big[7]"))
            woken.append([time.perf_counter() - asleep])
            slept.append([asleep - begin])
    return [absolute("a sandbox with 50 MB falls asleep on disk", slept, "ms", None, "written, not synced"),
            absolute("it wakes from disk", woken, "ms", 50, "and its kernel has answered"), *_sleepers(settings)]


def _sleepers(settings: FigureSettings) -> Sequence[Row]:
    """A daemon that starts with many: copies of one, made here by links to its files under other ids."""
    count = settings.some(_SLEEPERS)
    with tempfile.TemporaryDirectory(prefix="leeward-figures-") as folder:
        config = Path(folder, "config.toml")
        config.write_text(f'sleep_folder = "{folder}/sleep"\nsleep_size = "200G"\npool_size = 2\n')
        path = f"{folder}/socket"
        options = "--config", str(config), f"--socket={path}"
        with daemon(None, *options):
            before = _resident(path)
            box = Sandbox(socket=path)
            kernel = box.kernel()
            good(kernel.execute("x = 7"))
            box.pause()
        first, = Path(folder).glob("sleep/*/*.sleeper")
        head = (first / "head").read_bytes()
        for number in range(count - 1):
            other = first.parent / f"{''.join('abcdefghij'[int(digit)] for digit in f'{number:026}')}.sleeper"
            other.mkdir(mode=0o700)
            (other / "head").write_bytes(head)
            for name in ("1", "files"):
                os.link(first / name, other / name)
        with daemon(None, *options):
            each = (_resident(path) - before) / count
            rows = sum(row["asleep"] for row in Sandbox.list(socket=path))
            good(kernel.execute("x"))
    assert rows == count
    return [Row("memory of the daemon for one that sleeps", each / 1024, "KiB", None, note=f"of {count} in one daemon")]


def _resident(path: str) -> int:
    """Bytes of memory that the daemon on *path* has."""
    with Client(path) as client:
        pid = client.status()["pid"]
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE


@contextlib.contextmanager
def _sandbox(config: str = "") -> Iterator[Sandbox]:
    with tempfile.TemporaryDirectory(prefix="leeward-figures-") as folder:
        place = None
        if config:
            place = Path(folder, "config.toml")
            place.write_text(config)
        with daemon(None, *(("--config", str(place)) if place else ())) as path, \
                Sandbox(socket=path, memory="4G", processes=200) as box:
            yield box


def _of(name: str, code: str, settings: FigureSettings, taken: float, size: float | None,
        rolled: float) -> Sequence[Row]:
    with _sandbox() as box:
        return _measured(name, box.kernel(), code, settings, taken, size, rolled)


def _measured(name: str, kernel: Kernel, code: str, settings: FigureSettings, taken: float, size: float | None,
              rolled: float) -> Sequence[Row]:
    good(kernel.execute(code, timeout=60))
    snapshots: list[list[float]] = []
    rollbacks: list[list[float]] = []
    floors: list[list[float]] = []
    pages: list[list[float]] = []
    sizes: list[float] = []
    with kernel.snapshot() as first:
        memory = mmap.mmap(-1, first.size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory[:] = os.urandom(first.size)
    for _ in range(settings.some(20)):
        begin = time.perf_counter()
        with kernel.snapshot() as snapshot:
            made = time.perf_counter()
            kernel.rollback(snapshot)
            snapshots.append([made - begin])
            rollbacks.append([time.perf_counter() - made])
            sizes.append(snapshot.size / _MIB)
    # Not in turn with those: the pages that a floor frees are in small pieces when the next snapshot wants huge ones.
    for _ in snapshots:
        made_pages, written = _forked(memory)
        pages.append([made_pages])
        floors.append([written])
    of = f"a fork that writes as much as that of {name}"
    found = {"snapshot": snapshots, of: floors}
    return [absolute(f"snapshot of {name}", snapshots, "ms", taken, "from the request to the answer"),
            absolute(of, floors, "ms", None, "into a memory file, without leeward"),
            absolute(f"making the pages of that file, for {name}", pages, "ms", None, "small ones, without leeward"),
            compared(f"snapshot of {name} over {of}", found, "snapshot", of, None, note="measured behind it"),
            _mebibytes(f"size of a snapshot of {name}", sizes, size, ""),
            absolute(f"rollback of {name}", rollbacks, "ms", rolled, "to the snapshot just taken")]


def _pandas(settings: FigureSettings) -> Sequence[Row]:
    place = os.environ.get("LEEWARD_BENCH_ENVIRONMENT", "")
    if not place:
        return [missing("snapshot of a kernel with pandas", 25, "LEEWARD_BENCH_ENVIRONMENT isn't set")]
    with _sandbox(f'python_env = "{place}"\n') as box:
        return _measured("a kernel with pandas", box.kernel(), "import pandas", settings, 25, None, 15)


#: Environments by what their jobs have of pandas before their code begins.
_WARM = """
pool_size = 1
[environments.cold]
path = "{place}"
[environments.preload]
path = "{place}"
preload = ["pandas"]
[environments.warm]
path = "{place}"
warm = "{folder}/warm.py"
"""
_USE = "import pandas\nassert 6 == pandas.DataFrame({'a': [1, 2, 3]})['a'].sum()"
_PAUSE_S = 0.1  # in which a worker arms the next runner


def _warm(settings: FigureSettings) -> Sequence[Row]:
    """A job and a kernel that use pandas: imported by them, preloaded, or there from the start."""
    place = os.environ.get("LEEWARD_BENCH_ENVIRONMENT", "")
    if not place:
        return [missing("a job with pandas, warm", 10, "LEEWARD_BENCH_ENVIRONMENT isn't set")]
    rows = []
    with tempfile.TemporaryDirectory(prefix="leeward-figures-") as folder:
        Path(folder, "warm.py").write_text("import pandas\n" + _USE)
        with _sandbox(_WARM.format(place=place, folder=folder)) as any_box, Client(any_box.socket) as client:
            for name in ("cold", "preload", "warm"):
                target = 10 if name == "warm" else None
                good(client.execute(_USE, environment=name))
                jobs: list[list[float]] = []
                kernels: list[list[float]] = []
                with Sandbox(socket=any_box.socket, environment=name) as box:
                    for _ in range(settings.some(20)):
                        time.sleep(_PAUSE_S)
                        begin = time.perf_counter()
                        good(client.execute(_USE, environment=name))
                        ran = time.perf_counter()
                        with box.kernel() as kernel:
                            good(kernel.execute(_USE))
                            kernels.append([time.perf_counter() - ran])
                        jobs.append([ran - begin])
                rows += [absolute(f"a job with pandas, {name}", jobs, "ms", target, "with an armed runner"),
                         absolute(f"a kernel with pandas, {name}", kernels, "ms", None, "opened, and its first request")]
    return rows


def _copies(settings: FigureSettings) -> Sequence[Row]:
    spans: list[list[float]] = []
    used: list[float] = []
    with _sandbox() as box, Sandbox(socket=box.socket, memory="4G", processes=200) as other, \
            ThreadPoolExecutor(_AT_ONCE) as together:
        kernel = box.kernel()
        good(kernel.execute(_BIG, timeout=60))
        with kernel.snapshot() as snapshot:
            for _ in range(settings.some(3)):
                before, begin = _available(), time.perf_counter()
                copies = list(together.map(lambda number: (box, other)[number % 2].kernel(snapshot=snapshot), range(_COPIES)))
                spans.append([time.perf_counter() - begin])
                used.append((before - _available()) / _COPIES / _MIB)
                for each in copies:
                    each.close()
    return [absolute("100 copies of a state of 200 MB", spans, "ms", 600, f"{_AT_ONCE} asked for at once, each is there"),
            _mebibytes("memory of one of these copies", used, 5, "by MemAvailable of the machine")]


def _mebibytes(words: str, values: Sequence[float], target: float | None, note: str) -> Row:
    row = spread(words, "MiB", values, 2)
    return Row(words, row["p50"], "MiB", target, measured=[row], note=note)


def _available() -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        found = dict(line.split(":") for line in file)
    return int(found["MemAvailable"].split()[0]) << 10
