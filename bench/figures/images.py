"""Images: sandboxes on one of 600 MB, what each takes, and an import beside umoci's unpacking, where that is installed."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from glob import glob
from pathlib import Path

from bench import sandboxes as live
from bench.figures.row import FigureSettings, Row, missing, quotient, spread
from leeward.apps.images.sources import find
from leeward.apps.images.store import Images, ImportProgress
from leeward.apps.images.streams import ImageBounds
from leeward_cli.bench.figures import percentile
from leeward_cli.bench.ours import daemon, daemon_pid

_BOXES, _LARGE, _MIDDLE = 12, 600_000_000, 250_000_000
_IMPORT = "an image of 250 MB imported, over umoci unpack --rootless: processor time"
_CONFIG = """\
images_folder = "{store}"
max_sessions = 64
[profiles.armed]
image = "large"
min = {boxes}
max = {most}
[profiles.cold]
image = "large"
max = {most}
[profiles.plain]
min = {boxes}
max = {most}
"""


def measure(settings: FigureSettings) -> Sequence[Row]:
    with tempfile.TemporaryDirectory(prefix="leeward-bench.", dir="/var/tmp") as folder:
        store = Images(f"{folder}/store")
        with _root(folder, _LARGE) as archive:
            _import(store, archive, "large")
        rows = [*_opened(store, settings)]
        store.remove("large")
        store.prune()
        return [*rows, _imported(store, folder, settings)]


@contextlib.contextmanager
def _root(folder: str, size: int) -> Iterator[str]:
    """A tar of so many bytes of this machine's own programs and libraries, which run."""
    first = [path for place in ("usr/lib64/*", "usr/lib/*/ld-*", "usr/lib/*/libc.so*", "usr/bin/echo")
             for path in glob(f"/{place}")]
    rows, left = dict.fromkeys(("/bin", "/sbin", "/lib", "/lib64", *first)), size
    for below in ("usr/bin", "usr/lib"):
        for at, _, files in os.walk(f"/{below}"):
            for path in (os.path.join(at, name) for name in files):
                left -= os.lstat(path).st_size
                if left >= 0:
                    rows[path] = None
    archive = f"{folder}/root.tar"
    subprocess.run(["tar", "-cf", archive, "-C", "/", "--null", "--no-recursion", "--ignore-failed-read", "-T", "-"],
                   input=b"\0".join(os.fsencode(path[1:]) for path in rows), check=True, stderr=subprocess.DEVNULL)
    try:
        yield archive
    finally:
        os.unlink(archive)


def _import(store: Images, source: str, name: str) -> None:
    with store.locked(shared=True):
        pass
    with find(source, ImageBounds(), spool=store.folder) as found:
        store.add(name, found, source, ImportProgress(), ImageBounds())


def _opened(store: Images, settings: FigureSettings) -> Iterator[Row]:
    config = Path(store.folder, "config.toml")
    config.write_text(_CONFIG.format(store=store.folder, boxes=_BOXES, most=2 * _BOXES))
    config.chmod(0o600)
    seconds, each = (dict[str, list[float]]((name, []) for name in ("plain", "armed", "cold")) for _ in range(2))
    wrong = list[str]()
    for _ in range(settings.some(4)):
        for profile in seconds:  # in turn, so that what else the machine does is in all of them
            with (daemon(None, "--config", str(config)) as path,
                  contextlib.closing(live.SandboxConnection(path, profile=profile)) as connection):
                connection.ask("sandbox_kill", sandbox=connection.open())  # its pool begins
                live.rest(connection, daemon_pid(path))
                found = live.at_once([(connection, daemon_pid(path))], _BOXES, wrong)
            seconds[profile].append(found["open ms in all"])
            each[profile].append((found["MiB"] - found["MiB before"]) / _BOXES)
    middle = {name: percentile(values, 50) for name, values in seconds.items()}
    for profile, armed, target in (("plain", _BOXES, None), ("armed", _BOXES, 100), ("cold", 1, None)):
        on = "without an image" if profile == "plain" else "on one image of 600 MB"
        yield Row(f"{_BOXES} sandboxes {on} opened, one after the other, {profile}", round(middle[profile]), "ms", target,
                  measured=[spread("sandbox_open", "ms", seconds[profile], 1)],
                  note=f"{armed} workers armed" + "".join(f"; {one}" for one in wrong))
    yield Row("an opening with an image, beyond one without, both armed",
              round((middle["armed"] - middle["plain"]) / _BOXES, 1), "ms", 2)
    memory = {name: percentile(values, 50) for name, values in each.items()}
    yield Row("memory of a sandbox with an image after its first command, beyond one without",
              round(memory["armed"] - memory["plain"], 2), "MiB", 1.5,
              note=f"shares of pages, without the kernel's: {memory['armed']:.2f} and {memory['plain']:.2f}")


def _imported(store: Images, folder: str, settings: FigureSettings) -> Row:
    if shutil.which("umoci") is None:
        return missing(_IMPORT, 1.5, "umoci isn't installed")
    layout, bundle = f"{folder}/layout", f"{folder}/bundle"
    with _root(folder, _MIDDLE) as archive:
        _import(store, archive, "middle")
        store.export("middle", f"{folder}/middle.tar")
    store.remove("middle")
    store.prune()
    os.mkdir(layout)
    subprocess.run(["tar", "-xf", f"{folder}/middle.tar", "-C", layout], check=True)
    ours, theirs = list[float](), list[float]()
    for _ in range(settings.some(6)):
        begin = _spent(resource.RUSAGE_SELF)
        _import(store, layout, "middle")
        ours.append(_spent(resource.RUSAGE_SELF) - begin)
        store.remove("middle")
        store.prune()
        begin = _spent(resource.RUSAGE_CHILDREN)
        subprocess.run(["umoci", "unpack", "--rootless", "--image", f"{layout}:middle", bundle], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        theirs.append(_spent(resource.RUSAGE_CHILDREN) - begin)
        shutil.rmtree(bundle)
    return Row(_IMPORT, quotient(ours, theirs), "x", 1.5,
               measured=[spread("leeward image import", "s", ours, 2), spread("umoci unpack", "s", theirs, 2)])


def _spent(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime
