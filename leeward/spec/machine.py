"""
Files that describe a machine as large as a job's limits, where programs look for the machine's size.

Why:       a program that reads the host's processors and memory starts a thread for each of the host's processors, and
           sizes its heap and caches by the host's memory. For containers lxcfs makes such files.
Source:    proc_meminfo(5), proc_cpuinfo(5), proc_stat(5), proc_vmstat(5), proc_filesystems(5);
           Documentation/admin-guide/cgroup-v2.rst, cputopology.rst

The files are written when a worker is made, with the daemon's limits. Those of SIZED are written again for a job
whose request has others, and after it.
"""

from __future__ import annotations

from functools import lru_cache

from leeward.base.dataclass import dataclass
from leeward.spec.limits import KIB, Limits
from leeward.spec.sandbox import Text

#: Files of the kernel's own /proc that jobs see. ps, top, uptime and psutil subtract a process's start from it, and a
#: file written once would be behind. Its first number is CLOCK_BOOTTIME, which every program may read anyway.
LIVE = ("uptime",)

#: The files whose content follows the limits of a request; `sizes` makes the contents.
SIZED = ("/proc/meminfo", "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/pids.max")

#: Bytes of /proc/cpuinfo at most: it is part of the workers' plan, a message of 192 KiB.
_MOST_CPUINFO = 48 * KIB

#: Lines of /proc/cpuinfo that are long, and the same for each processor; only the first processor keeps them.
_LONG = ("flags", "vmx flags", "bugs", "Features")

#: Lines of /proc/stat that sum over the host's processors: zeros, since what the host does is not shown.
_IDLE = " 0" * 10

_VMSTAT = "".join(f"{name} 0\n" for name in ("nr_free_pages", "pgpgin", "pgpgout", "pswpin", "pswpout", "pgfault",
                                             "pgmajfault", "oom_kill")).encode()

#: Types that /proc/self/mounts of a sandbox may have, those without a device first.
_FILESYSTEMS = "".join([*(f"nodev\t{name}\n" for name in ("tmpfs", "proc", "devpts", "overlay")),
                        *(f"\t{name}\n" for name in ("ext3", "ext4", "xfs", "btrfs", "f2fs", "erofs", "squashfs"))]).encode()

#: Empty folders.
FOLDERS = ("/sys/class/power_supply",)  # psutil's sensors_battery: it has none


@dataclass(frozen=True, slots=True)
class Machine:
    processors: int = 1  # the number of processors that the daemon may use
    cpuinfo: str = ""  # the content of /proc/cpuinfo
    booted: int = 0  # seconds since the epoch, as in the line `btime` of /proc/stat


def processors(machine: Machine, limits: Limits, *, fixed: bool) -> int:
    """
    The number of processors that a job sees: what its limit is worth of those that exist, in whole ones if its affinity
    is *fixed*, which holds that limit.
    """
    return max(1, min(machine.processors, limits.cpu // 100 if fixed else -(-limits.cpu // 100)))


def proc(machine: Machine, limits: Limits, count: int) -> tuple[Text, ...]:
    """The files of /proc of a machine with *count* processors and the memory of *limits*."""
    return (Text("/proc/meminfo", _meminfo(limits.memory)),                  # free, psutil, node's totalmem
            Text("/proc/cpuinfo", _cpuinfo(machine.cpuinfo, count)),  # lscpu, node's cpus, psutil
            Text("/proc/stat", _stat(machine.booted, count)),         # psutil, ps, top: since when the host is up
            Text("/proc/vmstat", _VMSTAT),                            # vmstat, psutil's swap_memory
            Text("/proc/filesystems", _FILESYSTEMS))                  # mount, psutil's disk_partitions


def sys(limits: Limits, count: int) -> tuple[Text, ...]:
    """
    The files of the processors' numbers, and the limits as a cgroup of version 2 shows them.

    Who needs them: glibc's get_nprocs and get_nprocs_conf (os.cpu_count, getconf, lscpu) ask the first; joblib's loky
    and Rust's available_parallelism the second.
    """
    online = f"0-{count - 1}\n" if count > 1 else "0\n"
    period = 100_000  # microseconds, the kernel's default
    group = {"cgroup.controllers": "cpu memory pids\n", "cpu.max": f"{limits.cpu * period // 100} {period}\n",
             "memory.max": _max(limits.memory), "memory.swap.max": "0\n", "pids.max": _max(limits.processes)}
    return (*(Text(f"/sys/devices/system/cpu/{name}", online.encode()) for name in ("online", "possible", "present")),
            *(Text(f"/sys/fs/cgroup/{name}", value.encode()) for name, value in group.items()))


def sizes(limits: Limits) -> tuple[bytes, ...]:
    """Return the contents of the files of SIZED, in that order."""
    return _meminfo(limits.memory), _max(limits.memory).encode(), _max(limits.processes).encode()


def _max(value: int) -> str:
    return f"{value}\n"


@lru_cache(16)  # nearly all sandboxes have the same
def _meminfo(memory: int) -> bytes:
    total = memory // KIB
    rows = {"MemTotal": total, "MemFree": total, "MemAvailable": total, "Buffers": 0, "Cached": 0, "SwapCached": 0,
            "Active": 0, "Inactive": 0, "SwapTotal": 0, "SwapFree": 0, "Dirty": 0, "Writeback": 0, "AnonPages": 0,
            "Mapped": 0, "Shmem": 0, "Slab": 0, "SReclaimable": 0, "SUnreclaim": 0, "CommitLimit": total,
            "Committed_AS": 0}
    return "".join(f"{name + ':':<15} {value:>8} kB\n" for name, value in rows.items()).encode()


def _cpuinfo(text: str, count: int) -> bytes:
    """Return the entries of the host's first *count* processors, or of as many of them as fit."""
    made: list[str] = []
    size = 0
    for number, block in enumerate(text.strip().split("\n\n")[:count]):
        lines = [line for line in block.split("\n") if not number or line.split("\t", 1)[0].split(":")[0] not in _LONG]
        part = "\n".join(lines) + "\n\n"
        size += len(part)
        if size > _MOST_CPUINFO:
            break
        made.append(part)
    return "".join(made).encode()


def _stat(booted: int, count: int) -> bytes:
    rows = [f"cpu {_IDLE}", *(f"cpu{number}{_IDLE}" for number in range(count)),
            "intr 0", "ctxt 0", f"btime {booted}", "processes 0", "procs_running 1", "procs_blocked 0",
            f"softirq{_IDLE} 0"]
    return "".join(f"{row}\n" for row in rows).encode()
