"""
/proc: a job sees its own namespace there, writes nothing and climbs nowhere. Catalogue cases 13, 23 and 24.

What stays visible: /proc/self/mountinfo tells the device and the folder behind each bind, and
/proc/self/maps the paths of the libraries that the zygote loaded, leeward's own among them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kit.attack import within, without
from kit.box import Box, control
from leeward.isolation.mounts import PROC_LINKS

Only = Callable[..., Box]


CLIMB = """
import glob
inside = [f"/proc/{who}" for who in ("self", "thread-self", "1", str(os.getppid()), str(os.getpid()))]
inside += glob.glob("/proc/*/task/*")
roots = [way + end for way in inside for end in ("/root", "/cwd", "/root/..", "/root/../../..", "/cwd/../../..")]
roots += [f"{way}/fd/{fd}" for way in inside for fd in range(8)] + [f"{way}/fd/{fd}/.." for way in inside
                                                                      for fd in range(8)]
read = []
for root in roots:
    try:
        read.append(open(root + path, "rb").read(100).decode("latin-1"))
    except OSError:
        pass
tell({"read": read, "tried": len(roots)})
"""


@pytest.mark.smoke
@pytest.mark.lock("mounts")
@pytest.mark.lock("landlock")
def test_c013_cannot_reach_the_host_through_a_link_of_proc(box: Box, only: Only, secret: tuple[Path, str]) -> None:
    """root, cwd and fd of every process that it sees lead to its own view."""
    path, text = secret
    with control():
        assert text in without(CLIMB, path=str(path))["read"]
        assert text in within(only(), CLIMB, path=str(path))["read"]

    for sandbox in (box, only("mounts"), only("landlock")):
        got = within(sandbox, CLIMB, path=str(path))

        assert got["tried"] > 50
        assert text not in got["read"]


#: Each is opened for writing, by the job and by a fresh program: a job's own files belong to root, being undumpable.
WRITE = """
import glob, subprocess
program = '''
import errno, json, os, sys
said = {}
for name in json.loads(sys.argv[1]):
    try:
        os.close(os.open(name, os.O_WRONLY))
        said[name] = ""
    except OSError as error:
        said[name] = errno.errorcode[error.errno]
print(json.dumps(said))
'''
def here():
    said = {}
    for name in names:
        said[name] = attempt(os.open, name, os.O_WRONLY)
    return said
fresh = subprocess.run([sys.executable, "-c", program, json.dumps(names)], capture_output=True, text=True, check=True)
tell({"here": here(), "fresh": json.loads(fresh.stdout),
      "left": [name for name in os.listdir("/proc") if not name.isdigit() and name not in ("self", "thread-self")]})
"""

GLOBAL = ("sysrq-trigger", "sys/kernel/core_pattern", "sys/vm/overcommit_memory",
          "sys/kernel/hostname",
          "bus/pci/devices", "fs/nfs", "irq/0/smp_affinity", "irq/default_smp_affinity", "acpi/wakeup", "scsi/scsi",
          "kcore", "mtrr",
          "timer_list", "latency_stats", "driver/rtc")
OWN = ("oom_score_adj", "oom_adj", "coredump_filter", "timens_offsets", "clear_refs", "mem", "comm", "autogroup",
       "sched", "timerslack_ns", "setgroups", "uid_map", "gid_map", "attr/current", "attr/exec", "make-it-fail",
       "loginuid")


@pytest.mark.lock("mounts")
@pytest.mark.lock("landlock")
def test_c023_cannot_open_a_file_of_proc_for_writing(box: Box, only: Only) -> None:
    """Nothing global is there; what is the job's own is read-only to it."""
    names = [*(f"/proc/{name}" for name in GLOBAL), *(f"/proc/self/{name}" for name in OWN),
             *(f"/proc/1/{name}" for name in OWN)]
    with control():
        loose = within(only(), WRITE, names=names)["fresh"]
        assert "" == loose["/proc/self/oom_score_adj"] == loose["/proc/self/mem"] == loose["/proc/self/comm"]

    got = within(box, WRITE, names=names)

    refused = {"ENOENT", "EACCES", "EROFS", "EPERM"}
    assert refused >= set(got["here"].values())
    assert refused >= set(got["fresh"].values())
    assert {"ENOENT"} == {got["here"][f"/proc/{name}"] for name in GLOBAL}
    assert [] == got["left"]
    # Without Landlock the global files are missing as well.
    alone = within(only("mounts"), WRITE, names=[f"/proc/{name}" for name in GLOBAL])
    assert {"ENOENT"} == set(alone["fresh"].values())
    # And with Landlock alone nothing of the host's own /proc can be written.
    alone = within(only("landlock"), WRITE, names=names)
    assert refused >= set(alone["fresh"].values())


OOM = """
import subprocess
program = '''
import errno, sys
def put(value):
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(str(value))
        return ""
    except OSError as error:
        return errno.errorcode[error.errno]
print(put(-1), put(-1000), put(500), open("/proc/self/oom_score_adj").read().strip(), sep=",")
'''
tell(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip().split(","))
"""


@pytest.mark.lock("landlock")
def test_c023_cannot_lower_its_oom_score(box: Box, only: Only) -> None:
    """Not even without Landlock: that takes a capability over the host. With Landlock, it can't be raised either."""
    with control():  # the file works, upwards
        assert ["EACCES", "EACCES", "", "500"] == within(only(), OOM)

    assert ["EACCES", "EACCES", "EACCES", "0"] == within(box, OOM)
    assert ["EACCES", "EACCES", "EACCES", "0"] == within(only("landlock"), OOM)


READ = """
said, text = {}, {}
for name in names:
    try:
        # kmsg would wait for the kernel to say something.
        with open(os.open(f"/proc/{name}", os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            text[name] = (file.read(1 << 16) or b"").decode("latin-1")  # kmsg may have nothing new
    except OSError as error:
        said[name] = errno.errorcode[error.errno]
tell({"said": said, "text": text, "names": os.listdir("/proc")})
"""

SENSITIVE = ("kcore", "keys", "key-users", "timer_list", "sched_debug", "kallsyms", "kmsg", "config.gz", "interrupts",
             "vmallocinfo", "cmdline", "version", "diskstats", "partitions", "modules", "zoneinfo",
             "slabinfo", "iomem", "sys/kernel/random/boot_id", "swaps", "loadavg")

#: Those that leeward writes; beside them there is `uptime`, which is the kernel's.
MADE = ("cpuinfo", "filesystems", "meminfo", "stat", "vmstat")


@pytest.mark.smoke
@pytest.mark.lock("mounts")
def test_c024_cannot_read_information_about_the_host_in_proc(box: Box, only: Only) -> None:
    """/proc holds processes, two links to oneself and the files of the view; no other name opens."""
    with control():
        loose = without(READ, names=SENSITIVE)
        assert {"version", "cmdline", "interrupts"} <= set(loose["text"])

    for sandbox in (box, only("mounts")):
        got = within(sandbox, READ, names=SENSITIVE)

        # /proc/net and /proc/mounts are links into /proc/self: the next test but one.
        assert dict.fromkeys(SENSITIVE, "ENOENT") == got["said"]
        assert {"self", "thread-self", "1", "2"} == set(got["names"])
        view = sandbox.engine.spec.view
        assert MADE == tuple(sorted(text.target.removeprefix("/proc/") for text in view.proc))
        assert {text.target.removeprefix("/proc/"): text.content.decode() for text in view.proc
                } == within(sandbox, READ, names=MADE)["text"]
        assert ("uptime",) == view.proc_live
        assert PROC_LINKS == within(sandbox, "tell({name: os.readlink(f'/proc/{name}') for name in ('net', 'mounts')})")


@pytest.mark.no_single_lock("with the keeper's capabilities, which no job has")
def test_c024_below_the_covers_of_proc_are_only_the_kernels_own_files(only: Only) -> None:
    """
    A process that could unmount leeward's /proc/meminfo, as no job can, would find the host's, or no file where the
    kernel has dropped the name meanwhile (5.10 does). No other name is beneath.
    """
    attack = """
names = ("meminfo", "cpuinfo", "stat", "uptime")
gone = [call("umount2", f"/proc/{name}".encode(), 2) for name in names]
tell({"gone": gone, "names": [attempt(os.stat, f"/proc/{name}") for name in ("version", "cmdline", "kcore", "sys")],
      "covers": open("/proc/meminfo").read() if os.path.exists("/proc/meminfo") else ""})
"""
    with control():
        loose = within(only("mounts"), attack)
        assert [""] * 4 == loose["gone"]
        (made,) = [text for text in only("mounts").engine.spec.view.proc if "/proc/meminfo" == text.target]
        assert made.content.decode() != loose["covers"]

    assert {"ENOENT"} == set(loose["names"])
    for held in (only("mounts", "privileges"), only("mounts", "seccomp")):
        got = within(held, attack)
        assert "" not in got["gone"]
        assert made.content.decode() == got["covers"]


@pytest.mark.needs("whole-root")
@pytest.mark.lock("mounts")
@pytest.mark.lock("namespaces")
def test_c024_a_jobs_own_files_of_proc_show_the_sandbox_only(box: Box, only: Only) -> None:
    """Mounts, groups and network as of the sandbox; no path of the host that isn't one inside as well."""
    names = ["self/mountinfo", "self/mounts", "self/cgroup", "self/net/dev", "self/net/unix", "self/net/tcp",
             "self/net/route", "self/net/arp", "1/cgroup"]
    with control():
        loose = without(READ, names=names)["text"]
        assert not _mounts_are_its_own(loose["self/mountinfo"])
        assert len(loose["self/net/unix"].splitlines()) > 1

    for sandbox in (box, only("mounts")):
        assert _mounts_are_its_own(within(sandbox, READ, names=names)["text"]["self/mountinfo"])
    for sandbox in (box, only("namespaces")):
        got = within(sandbox, READ, names=names)["text"]

        assert {line.rpartition(":")[2] for line in got["self/cgroup"].split()} == {"/"}
        assert ["lo:"] == [line.split()[0] for line in got["self/net/dev"].splitlines()[2:]]
        for name in ("self/net/unix", "self/net/tcp", "self/net/route", "self/net/arp"):
            assert len(got.get(name, "").splitlines()) <= 1, got[name]


def _mounts_are_its_own(table: str) -> bool:
    """Is each of them made for it, or a folder of the host at the place where it lies on the host?"""
    return all(line.split()[3] == line.split()[4] != "/" or line.split()[4].startswith("/dev/")
               or line.partition(" - ")[2].split()[0] in ("tmpfs", "proc") for line in table.splitlines())


@pytest.mark.lock("privileges", beside=("mounts",), because="/proc/1 has to be its own init")
def test_c024_cannot_read_the_inits_secrets(box: Box, only: Only) -> None:
    """The init shares the keeper's memory; nothing of it can be opened, and what it is says nothing."""
    attack = """
import glob
names = ["mem", "maps", "smaps", "environ", "auxv", "pagemap", "stack", "syscall", "io", "exe", "cwd", "root",
         "personality", "mountinfo", "ns/user", "fd", "map_files", "fdinfo", "task/1/fd", "patch_state"]
def look(name):
    try:
        if name in ("fd", "map_files", "fdinfo", "task/1/fd"):
            os.listdir(f"/proc/{who}/{name}")
            return ""
        if name in ("exe", "cwd", "root", "ns/user"):
            os.readlink(f"/proc/{who}/{name}")
            return ""
        with open(f"/proc/{who}/{name}", "rb") as file:
            file.read(16)
        return ""
    except OSError as error:
        return errno.errorcode[error.errno]
tell({name: look(name) for name in names})
"""
    with control():  # of a keeper that may be looked into
        own = without(attack, who="self")
        assert "" == own["environ"] == own["fd"] == own["exe"]
        init = within(only("mounts"), attack, who="1")
        assert "" == init["environ"] == init["maps"] == init["fd"]
    assert "EIO" == init["mem"]  # opened, and read where nothing is

    for sandbox in (box, only("mounts", "privileges")):
        got = within(sandbox, attack, who="1")

        assert {"EACCES", "ENOENT", "EPERM"} >= {error for name, error in got.items() if "mountinfo" != name}
