"""Where cgroups are mounted and where a process sits in them, read from texts of real hosts."""

from __future__ import annotations

from leeward.isolation.cgroup.hierarchy import Hierarchy, parse

HYBRID_GROUPS = """\
9:name=systemd:/
8:pids:/
4:memory:/sessions/17
2:cpuacct,cpu:/
0::/
"""
HYBRID_MOUNTS = """\
23 1 0:21 / /sys rw,relatime - sysfs sysfs rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids ro,relatime - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw
"""


def by_controllers(found: tuple[Hierarchy, ...]) -> dict[str, Hierarchy]:
    return {",".join(sorted(each.controllers)): each for each in found}


def test_a_hybrid_host():
    """Version 1 hierarchies with one controller, with two, with none but a name, and the unified one."""
    got = by_controllers(parse(HYBRID_GROUPS, HYBRID_MOUNTS))

    assert got == {
        "memory": Hierarchy(1, frozenset({"memory"}), "/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory/sessions/17"),
        "cpu,cpuacct": Hierarchy(1, frozenset({"cpu", "cpuacct"}), "/sys/fs/cgroup/cpu,cpuacct",
                                 "/sys/fs/cgroup/cpu,cpuacct"),
        "pids": Hierarchy(1, frozenset({"pids"}), "/sys/fs/cgroup/pids", "/sys/fs/cgroup/pids", writable=False),
        "name=systemd": Hierarchy(1, frozenset({"name=systemd"}), "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/systemd"),
        "": Hierarchy(2, frozenset(), "/sys/fs/cgroup/unified", "/sys/fs/cgroup/unified"),
    }


def test_a_systemd_user():
    """One hierarchy, deep inside."""
    own = "/user.slice/user-1000.slice/user@1000.service/app.slice/run-r1.scope"
    mounts = "25 23 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"

    (got,) = parse(f"0::{own}\n", mounts)

    assert got.own == f"/sys/fs/cgroup{own}"
    assert got.version == 2


def test_a_container_with_its_part_mounted():
    """The mount's root is our group: it is the mount point that counts."""
    mounts = "90 80 0:22 /docker/abc /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n"

    (got,) = parse("0::/docker/abc/sub\n", mounts)

    assert got.own == "/sys/fs/cgroup/sub"
    assert not got.writable


def test_a_mount_that_does_not_show_our_group_is_no_use():
    """As in a container with the host's cgroup namespace and somebody else's part."""
    assert parse("0::/docker/abc\n", "90 80 0:22 /docker/other /sys/fs/cgroup rw - cgroup2 cgroup rw\n") == ()
    assert parse("0::/../outside\n", "90 80 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n") == ()


def test_of_two_mounts_the_later_is_on_top():
    """And a space in a path is a space."""
    mounts = ("90 80 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n"
              "91 80 0:22 / /mnt/my\\040groups rw - cgroup2 cgroup rw\n")

    (got,) = parse("0::/a b\n", mounts)

    assert got.own == "/mnt/my groups/a b"


def test_a_host_without_cgroups():
    """Nothing to find, and no error."""
    assert parse("", "23 1 0:21 / / rw - ext4 /dev/vda rw\n") == ()


def test_what_another_user_mounts_is_one_row():
    """Whatever its path is: the kernel escapes what separates rows and fields, and nothing else by which lines may end."""
    theirs = "50 23 0:50 / /home/m/a\rb\x85c\u2028d\udcff rw - fuse.m\rx m\x1c rw,user_id=1000\n"

    assert parse(HYBRID_GROUPS, theirs + HYBRID_MOUNTS) == parse(HYBRID_GROUPS, HYBRID_MOUNTS)
