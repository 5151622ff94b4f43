"""
A container made from nothing but this machine's /usr, by runc or crun.

Runs in:   the tests, as root.

What it starts from is what `runc spec` or `crun spec` writes, with the capabilities that Docker and Podman give: /proc
is masked, cgroups are read-only, and in the root filesystem is what every Debian has before it is configured.
`DOCKER_LIKE` is a filter that does with leeward's calls what Docker's default profile does.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kit import features

#: Seconds for everything that runs in a container; on an idle machine two are enough.
PATIENCE_S = 60 * features.SLOWER

CAPABILITIES = tuple(f"CAP_{name}" for name in (
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "NET_RAW",
    "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"))

#: What Docker's and Podman's defaults, which are lists of what is allowed, do with calls that leeward makes: without
#: CAP_SYS_ADMIN clone3 doesn't exist, and what else makes namespaces or mounts, or a ring, is not permitted.
_EPERM, _ENOSYS = 1, 38
_NAMESPACES = 0x7E020000  # CLONE_NEW*
DOCKER_LIKE: dict[str, Any] = {
    "defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"], "syscalls": [
        {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": _ENOSYS},
        {"names": ["unshare", "setns", "mount", "umount2", "pivot_root", "open_tree", "move_mount", "fsopen",
                   "fsconfig", "fsmount", "fspick", "mount_setattr", "sethostname", "setdomainname", "bpf",
                   "perf_event_open", "keyctl", "io_uring_setup", "io_uring_enter", "io_uring_register"],
         "action": "SCMP_ACT_ERRNO", "errnoRet": _EPERM},
        *({"names": ["clone"], "action": "SCMP_ACT_ERRNO", "errnoRet": _EPERM,
           "args": [{"index": 0, "value": 1 << bit, "valueTwo": 1 << bit, "op": "SCMP_CMP_MASKED_EQ"}]}
          for bit in range(32) if _NAMESPACES >> bit & 1),
    ]}


#: crun refuses to run where version 2 of cgroups has a controller beside version 1's. Then it sees the latter alone, in
#: a view of the mounts that only it has.
HYBRID = Path("/sys/fs/cgroup/unified")
ENGINES = {
    "runc": ("runc",),
    "crun": ("crun",) if not HYBRID.is_mount() else (
        "unshare", "--mount", "--propagation", "private", "sh", "-c", f'umount {HYBRID} && exec crun "$@"', "crun"),
}


@dataclass
class Container:
    """
    A container's bundle, and the commands to run it.

    Args:
        folder: empty; the bundle and the engine's state go there.
        installation: the environment with leeward in it, which the container shows under the same path.
        seccomp: linux.seccomp of the configuration; None is no filter.
        masked: parts of /proc are covered.
        cgroups: the container may write to its own groups.
        uid: the uid of the process inside; it has no capabilities unless it is root's.
        capabilities: the capabilities of root inside.
        bound: no_new_privs, and a root that nobody can write to, with tmpfs where a pod has volumes.
        mapped: in a user namespace of its own, as Podman does for users and Docker with userns-remap.
        shown: further folders, read-only, by their paths in the container.
        engine: one of ENGINES.
    """

    folder: Path
    installation: Path
    seccomp: dict[str, Any] | None = None
    masked: bool = True
    cgroups: bool = False
    uid: int = 0
    capabilities: tuple[str, ...] = CAPABILITIES
    bound: bool = False
    mapped: bool = False
    shown: Mapping[Path, Path] = field(default_factory=dict)
    engine: str = "runc"
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = f"leeward-test-{os.getpid()}"
        self._root()
        subprocess.run([self.engine, "spec"], cwd=self.folder, check=True, capture_output=True)
        path = self.folder / "config.json"
        config = json.loads(path.read_text())
        self._change(config)
        path.write_text(json.dumps(config))

    def _root(self) -> None:
        """The part of a Debian that isn't in /usr, and the dynamic linker's cache, which its packages make."""
        root = self.folder / "rootfs"
        for name in ("dev", "etc", "proc", "root", "run", "state", "sys", "tmp", "usr", "var/tmp",
                     *(str(folder).lstrip("/") for folder in (self.installation, *self.shown))):
            (root / name).mkdir(parents=True, exist_ok=True)
        if features.IN_GUEST:
            (root / "leeward-vm").mkdir()  # by which the tests in it know how slow it is
        for name in ("tmp", "var/tmp", "run"):  # in the last, somebody who isn't root has a folder
            (root / name).chmod(0o1777)
        for name in ("bin", "lib", "lib32", "lib64", "sbin"):
            if Path("/", name).is_symlink():
                (root / name).symlink_to(Path("/", name).readlink())
        for name, worker in (("passwd", "worker:x:1000:1000::/tmp:/bin/sh\n"), ("group", "worker:x:1000:\n")):
            (root / "etc" / name).write_text(Path(f"/usr/share/base-passwd/{name}.master").read_text() + worker)
        (root / "etc/shadow").write_text("root:*:20000:0:99999:7:::\nworker:*:20000:0:99999:7:::\n")
        (root / "etc/shadow").chmod(0o640)
        for name in ("ld.so.cache", "os-release"):
            (root / "etc" / name).write_bytes(Path("/etc", name).read_bytes())
        shutil.copytree("/etc/alternatives", root / "etc/alternatives", symlinks=True)

    def _change(self, config: dict[str, Any]) -> None:
        process, linux = config["process"], config["linux"]
        process["terminal"] = False
        process["user"] = {"uid": self.uid, "gid": self.uid}
        process["noNewPrivileges"] = self.bound
        sets = ("bounding", "effective", "permitted")
        process["capabilities"] = {} if self.uid else dict.fromkeys(sets, self.capabilities)
        process["rlimits"] = []
        process["env"] = [f"PATH={self.installation}/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/tmp", "LANG=C.UTF-8",
                          "XDG_RUNTIME_DIR=/run"]
        config["root"]["readonly"] = self.bound
        config["mounts"] += [{"destination": at, "source": "tmpfs", "type": "tmpfs", "options": ["mode=777"]}
                             for at in (("/tmp", "/run", "/state") if self.bound else ())]
        seen = {Path("/usr"): Path("/usr"), self.installation: self.installation, **self.shown}
        config["mounts"] += [{"destination": str(at), "source": str(path), "type": "bind", "options": ["rbind", "ro"]}
                             for at, path in seen.items()]
        if self.seccomp is not None:
            linux["seccomp"] = self.seccomp
        if not self.masked:
            linux["maskedPaths"] = linux["readonlyPaths"] = []
        if self.cgroups:
            (groups,) = [mount for mount in config["mounts"] if "/sys/fs/cgroup" == mount["destination"]]
            groups["options"].remove("ro")
        if self.mapped:
            linux["namespaces"].append({"type": "user"})
            linux["uidMappings"] = linux["gidMappings"] = [{"containerID": 0, "hostID": 100000, "size": 65536}]

    @property
    def _command(self) -> list[str]:
        return [*ENGINES[self.engine], "--root", str(self.folder / "state")]

    def _give(self, argv: Sequence[str]) -> None:
        path = self.folder / "config.json"
        config = json.loads(path.read_text())
        config["process"]["args"] = list(argv)
        path.write_text(json.dumps(config))

    def _delete(self) -> None:
        subprocess.run([*self._command, "delete", "--force", self.name], check=False, capture_output=True)

    def run(self, script: str, seconds: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        """Run *script* by the shell, as the container's first process."""
        self._give(["/bin/sh", "-c", script])
        try:
            return subprocess.run([*self._command, "run", self.name], cwd=self.folder, check=False, capture_output=True,
                                  text=True, stdin=subprocess.DEVNULL, timeout=seconds)
        finally:
            self._delete()

    @contextlib.contextmanager
    def running(self, argv: Sequence[str], ready: str) -> Iterator[subprocess.Popen[str]]:
        """
        Run *argv* as the container's first process. The block begins when a line with *ready* in it is printed, and at
        its end SIGTERM ends the process.
        """
        self._give(argv)
        with subprocess.Popen([*self._command, "run", self.name], cwd=self.folder, stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as first:
            try:
                assert first.stderr is not None
                said = []
                for line in first.stderr:
                    said.append(line)
                    if ready in line:
                        break
                else:
                    raise AssertionError("".join(said))
                yield first
                subprocess.run([*self._command, "kill", self.name, "TERM"], check=True, capture_output=True)
                first.communicate(timeout=PATIENCE_S)
            finally:
                self._delete()

    def exec(self, script: str) -> subprocess.CompletedProcess[str]:
        """Run *script* by the shell, beside the first process."""
        return subprocess.run([*self._command, "exec", self.name, "/bin/sh", "-c", script], check=False,
                              capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=PATIENCE_S)
