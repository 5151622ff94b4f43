"""
Layers: system packages for agents, unpacked in a folder beside those of the host, made once for each list and kept.

The host's apt-get and dpkg-deb fetch and unpack the packages in a sandbox, without root. No script of a package is run.
Trust:     none in the unpacked files. apt verifies the signatures of the lists with the host's keys. The folder is the
           user's alone (0700), is mounted read-only and nosuid, and nothing on the host runs its files.
Leaves:    programs that look for their own files at an absolute path (/usr/share/x) don't find them. Services, users
           and other results of a package's scripts are missing.
Blocks:    while another program makes the same layer, and until the packages are fetched.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from leeward.apps.agents.checks import check_package
from leeward.apps.agents.state_files import own_folder
from leeward.base.closing import OwnedFd, on_failure
from leeward.base.dataclass import dataclass
from leeward.base.file_locks import THERE, locked
from leeward.base.whole_files import write_whole
from leeward.client.folder_size import SizeWatch, size_of
from leeward.client.mounts import Mount
from leeward.client.sandbox import Sandbox
from leeward.errors import BadRequest, LeewardError, Unsupported

#: The path of the layer in a sandbox.
INSIDE = "/opt/packages"


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer on the host, with a lock against its removal until `close`."""

    path: str  # the folder on the host with the unpacked packages
    packages: tuple[str, ...]  # the names and versions of all packages in it
    made: bool  # whether this call of `Layers.get` has made it
    lock: int  # a descriptor of the folder with a shared flock(2)

    def close(self) -> None:
        os.close(self.lock)

    def environment(self) -> dict[str, tuple[str, ...]]:
        """Variables by which programs find the layer's files, each with the folders that come first in its value."""
        triplet = f"{os.uname().machine}-linux-gnu"
        found = {
            "PATH": ("usr/local/bin", "usr/bin", "usr/sbin", "usr/games", "bin", "sbin"),
            "LD_LIBRARY_PATH": (f"usr/lib/{triplet}", "usr/lib", f"lib/{triplet}", "lib"),
            "LIBRARY_PATH": (f"usr/lib/{triplet}", "usr/lib"),
            "CPATH": ("usr/include", f"usr/include/{triplet}"),
            "PKG_CONFIG_PATH": (f"usr/lib/{triplet}/pkgconfig", "usr/lib/pkgconfig", "usr/share/pkgconfig"),
            "PERL5LIB": ("usr/share/perl5", *self._folders(f"usr/lib/{triplet}/perl5")),
        }
        there = {name: tuple(f"{INSIDE}/{folder}" for folder in folders if os.path.isdir(f"{self.path}/{folder}"))
                 for name, folders in found.items()}
        if os.path.isdir(f"{self.path}/usr/share"):
            there["XDG_DATA_DIRS"] = (f"{INSIDE}/usr/share", "/usr/local/share", "/usr/share")
        return {name: folders for name, folders in there.items() if folders}

    def _folders(self, path: str) -> list[str]:
        try:
            return [f"{path}/{name}" for name in sorted(os.listdir(f"{self.path}/{path}"))]
        except OSError:
            return []


#: Bytes of one list of sources, at most.
_MOST_LISTED = 1 << 20
_SOURCE = re.compile(r"deb(?:-src)?\s+(?:\[[^]]*\]\s+)?(\S+)")


@dataclass(frozen=True, slots=True)
class AptSources:
    etc: str  # a folder with the layout of /etc/apt
    hosts: tuple[str, ...]  # names, each with its port
    folders: tuple[str, ...]  # of the host, with packages (`file:`)


def apt_sources(etc: str) -> AptSources:
    """Read the lists of sources below *etc*, as /etc/apt; Unsupported if there are none that a sandbox can reach."""
    hosts, folders, other = dict[str, None](), dict[str, None](), dict[str, None]()
    for uri in _uris(etc):
        found = urlsplit(uri)
        if found.scheme in ("http", "https") and found.hostname:
            hosts[f"{found.hostname}:{found.port or (80 if found.scheme == 'http' else 443)}"] = None
        elif found.scheme in ("file", "copy") and found.path.startswith("/"):
            folders[os.path.realpath(found.path)] = None
        else:
            other[uri] = None
    if not hosts and not folders:
        why = f"sources that can't be reached from a sandbox: {', '.join(other)}"[:200] if other else f"none in {etc}"
        raise Unsupported("sources of packages", have=why, need="one of http, https or file",
                          cure="look at /etc/apt/sources.list.d")
    return AptSources(etc, tuple(hosts), tuple(folders))


def _uris(etc: str) -> Iterator[str]:
    parts = os.path.join(etc, "sources.list.d")
    names = sorted(os.listdir(parts)) if os.path.isdir(parts) else []
    for path in (os.path.join(etc, "sources.list"), *(os.path.join(parts, name) for name in names)):
        if not path.endswith((".list", ".sources")):
            continue
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read(_MOST_LISTED)
        except OSError:
            continue
        yield from _of_stanzas(text) if path.endswith(".sources") else (
            found[1] for line in text.splitlines() if (found := _SOURCE.match(line.strip())))


def _of_stanzas(text: str) -> Iterator[str]:
    """The URIs of enabled stanzas in the format deb822, where a value continues in lines that begin with a blank."""
    for stanza in re.split(r"\n\s*\n", text):
        fields, name = dict[str, str](), ""
        for line in stanza.splitlines():
            if line.startswith("#"):
                continue
            if line[:1].isspace() and name:
                fields[name] += f" {line.strip()}"
            elif ":" in line:
                name, _, value = line.partition(":")
                name = name.strip().lower()
                fields[name] = value.strip()
        if fields.get("enabled", "yes").lower() not in ("no", "false", "without", "off", "disable"):
            yield from fields.get("uris", "").split()


#: The paths of the host's /etc/apt and /var/lib/dpkg in the sandbox that makes a layer.
_ETC, _STATUS = "/opt/apt", "/opt/dpkg"
#: Bytes of one layer; bytes of memory and seconds to make it; layers that are kept.
MOST_BYTES, _MEMORY, _TIME_S, _KEPT = 4 << 30, 1 << 30, 1200.0, 10
#: Packages that a manifest names, and bytes of a manifest: at most.
_MOST_NAMES, _MOST_MANIFEST = 500, 1 << 17

#: The parts of a layer's folder: the unpacked files, which agents are shown; and apt's files, which may have 100 MB and
#: so are on the disk rather than in memory.
_ROOT, _WORK = "root", "work"
_MAKE = f"""
set -e
export LC_ALL=C
cd {INSIDE}/{_WORK}
mkdir -p lists/partial cache/archives/partial
apt-get -q -q update
# Packages in a folder of the host (file:) aren't copied.
apt-get -q -q --print-uris install --no-install-recommends --yes -- "$@" |
    sed -n "s/^'file:\\([^']*\\)'.*/\\1/p" | sed 's/%2b/+/g; s/%7e/~/g; s/%3a/:/g' >local
apt-get -q install --download-only --no-install-recommends --yes -- "$@"
{{ cat local; ls cache/archives/*.deb 2>/dev/null || :; }} | while read -r each; do
    dpkg-deb --extract "$each" {INSIDE}/{_ROOT}
    dpkg-deb --show --showformat '${{Package}} ${{Version}}\n' "$each" >>names
done
"""


class LayerFailed(LeewardError):
    """The packages couldn't be fetched or unpacked. The message has the last lines of apt."""


class Layers:
    """
    The layers in a folder of the caller's alone, which several programs may use at once.

    *own_apt* is used in place of /etc/apt if it exists. *egress* is the daemon's policy by which apt reaches its
    sources, "" for `agent`; *addresses* are rules for sources whose names have addresses that aren't public.
    """

    def __init__(self, folder: str, own_apt: str = "", socket: str | None = None, egress: str = "",
                 addresses: Sequence[str] = ()) -> None:
        self._folder, self._own_apt, self._socket = folder, own_apt, socket
        self._egress, self._addresses = egress or "agent", tuple(addresses)

    def get(self, packages: Sequence[str], *, rebuild: bool, said: Callable[[bytes], object]) -> Layer:
        """
        The layer with *packages*, which the caller closes, made unless it exists or with *rebuild*; *said* gets apt's
        output.

        Raises LayerFailed if apt or dpkg-deb failed, and nothing is left behind; BadRequest if the packages are too
        large; Unsupported if this host has neither, or others can enter the folder.
        """
        wanted = tuple(dict.fromkeys(map(check_package, packages)))
        etc = self._own_apt if self._own_apt and os.path.isdir(self._own_apt) else "/etc/apt"
        own_folder(self._folder)
        key = _key(wanted, etc)
        with OwnedFd(locked(os.path.join(self._folder, f".{key}.lock"), wait=True)):  # no other program makes one meanwhile
            found = None if rebuild else self._found(key)
            if found is None:
                for tool in ("apt-get", "dpkg-deb"):
                    if shutil.which(tool) is None:
                        raise Unsupported("dependencies", have=f"no {tool}", need="Debian's apt-get and dpkg-deb",
                                          cure="install the packages on the host, which agents are shown, or drop"
                                               " `dependencies`")
                found = self._make(key, wanted, apt_sources(etc), said)
            self._prune(key)
            return found

    def _found(self, key: str) -> Layer | None:
        try:
            with open(os.path.join(self._folder, f"{key}.json"), "rb") as file:
                row = json.loads(file.read(_MOST_MANIFEST))
            path = os.path.join(self._folder, str(row["folder"]))
            packages = tuple(map(str, row["packages"]))
            held = locked(path, THERE, shared=True, wait=True)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if not os.path.isdir(os.path.join(path, _ROOT)):  # another program has pruned it before it was locked
            os.close(held)
            return None
        os.utime(held)  # `_prune` removes the layers with the oldest times
        return Layer(os.path.join(path, _ROOT), packages, False, held)

    def _make(self, key: str, packages: Sequence[str], sources: AptSources, said: Callable[[bytes], object]) -> Layer:
        number = 1 + max((int(name.rpartition("-")[2]) for name in self._folders(key)), default=0)
        path = os.path.join(self._folder, f"{key}-{number}")
        for folder in ("", _ROOT, _WORK):
            os.mkdir(os.path.join(path, folder), 0o700)
        with on_failure(_remove, path):
            names = _unpack(path, packages, sources, self._socket, said, self._reach(sources))
            _remove(os.path.join(path, _WORK))
            row = json.dumps({"folder": os.path.basename(path), "packages": names}).encode()
            write_whole(os.path.join(self._folder, f"{key}.json"), row, lasting=False)
        found = self._found(key)
        if found is None:
            raise LayerFailed(f"{path!a:.200} has just been removed")
        return Layer(found.path, found.packages, True, found.lock)

    def _reach(self, sources: AptSources) -> dict[str, Any]:
        """Options of Sandbox by which apt reaches these sources and no other hosts."""
        if not sources.hosts:
            return {}
        return {"egress": self._egress, "policy": {
            "allow": [*sources.hosts, *self._addresses],
            "ports": sorted({int(host.rpartition(":")[2]) for host in sources.hosts}),
            "limits": {"response": 8 << 30, "per_minute": 3000}}}

    def _folders(self, key: str = "") -> list[str]:
        return [name for name in os.listdir(self._folder) if re.fullmatch(r"[0-9a-f]{32}-[0-9]{1,9}", name)
                and name.startswith(key)]

    def _prune(self, key: str) -> None:
        """Remove layers that no program holds: former ones of *key*, and the least recently used beyond _KEPT."""
        current = set()
        for name in os.listdir(self._folder):
            if name.endswith(".json") and not name.startswith("."):
                with contextlib.suppress(OSError, ValueError, KeyError, TypeError), \
                        open(os.path.join(self._folder, name), "rb") as file:
                    current.add(str(json.loads(file.read(_MOST_MANIFEST))["folder"]))
        names = sorted(self._folders(), key=self._used)
        extra = max(0, len(names) - _KEPT)
        for number, name in enumerate(names):
            if name in current and (number >= extra or name.startswith(key)):
                continue
            if name not in current and not name.startswith(key):
                continue  # another program may be making it
            path = os.path.join(self._folder, name)
            try:
                alone = locked(path, THERE)
            except (FileNotFoundError, BlockingIOError):
                continue  # another program has removed it, or an agent uses it
            with OwnedFd(alone):
                if name in current:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(os.path.join(self._folder, f"{name.rpartition('-')[0]}.json"))
                _remove(path)

    def _used(self, name: str) -> float:
        """The time of the layer's last use; 0.0 for one that another program has removed."""
        try:
            return os.lstat(os.path.join(self._folder, name)).st_mtime
        except FileNotFoundError:
            return 0.0


def _key(packages: Sequence[str], etc: str) -> str:
    """The name of a layer: a hash over the list, the host's system, and the folder of the lists of sources."""
    system = platform.freedesktop_os_release() if os.path.exists("/etc/os-release") else {}
    parts = (*sorted(packages), "", system.get("ID", ""), system.get("VERSION_ID", ""), platform.machine(), etc)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _unpack(path: str, packages: Sequence[str], sources: AptSources, socket: str | None,
            said: Callable[[bytes], object], reach: dict[str, Any]) -> list[str]:
    """Have apt-get fetch *packages* and what they need, and unpack them into *path*. Returns their names and versions."""
    mounts = [Mount(path, INSIDE, writable=True), Mount(sources.etc, _ETC), Mount("/var/lib/dpkg", _STATUS),
              *(Mount(folder, folder) for folder in sources.folders)]
    configuration = "\n".join((
        f'Dir::Etc "{_ETC}";', f'Dir::State::status "{_STATUS}/status";', 'Dir::State "/tmp";',
        f'Dir::State::lists "{INSIDE}/{_WORK}/lists";', f'Dir::Cache "{INSIDE}/{_WORK}/cache";', 'Dir::Log "/tmp";',
        f'Dir::Etc::trustedparts "{_ETC}/trusted.gpg.d";', 'Debug::NoLocking "true";', 'APT::Sandbox::User "";',
        'Acquire::Languages "none";', 'APT::Get::List-Cleanup "false";', ""))
    env = {"HOME": "/tmp", "APT_CONFIG": "/tmp/apt.conf"}
    with Sandbox(socket=socket, profile="agent", mounts=mounts, memory=_MEMORY, env=env, held=True, **reach) as box:
        def end() -> None:
            with contextlib.suppress(LeewardError):
                box.kill()

        box.files.write("/tmp/apt.conf", configuration)
        with SizeWatch(path, MOST_BYTES, end) as watch:
            try:
                # `start`, since `run` is bounded by the daemon's ceiling of time.
                process = box.start(["sh", "-c", _MAKE, "sh", *packages])
                late = threading.Timer(_TIME_S, end)
                late.daemon = True
                late.start()
                try:
                    got = process.result(said, said)
                finally:
                    late.cancel()
                names = box.files.read(f"{INSIDE}/{_WORK}/names") if got.ok and box.files.exists(
                    f"{INSIDE}/{_WORK}/names") else b""
            except LeewardError:
                if not watch.over:
                    raise
        if watch.over or size_of(path, MOST_BYTES) > MOST_BYTES:
            raise BadRequest(f"dependencies: the packages have more than {MOST_BYTES} bytes")
    if not got.ok:
        last = [line for line in (got.stderr_text or got.stdout_text).strip().splitlines() if line.strip()][-4:]
        raise LayerFailed("dependencies: " + ("; ".join(ascii(line)[1:-1] for line in last) or repr(got))[:1000])
    return names.decode("utf-8", "replace").splitlines()[:_MOST_NAMES]


def _remove(path: str) -> None:
    """Remove a tree of any depth. chmod -R and rm -rf follow no links below *path*."""
    for words in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
        subprocess.run([*words, "--", path], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, check=False)
