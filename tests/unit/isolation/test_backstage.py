"""Who needs which namespaces for a zygote, and what its root shows: decided without a kernel."""

from __future__ import annotations

import pytest

from leeward._native.spawn import Clone
from leeward.isolation.backstage import Backstage, decide, shown
from leeward.spec.sandbox import Bind, Scratch, Symlink, View

HOST = "         0          0 4294967295\n"
PODMANS = "0 1000 1\n1 100000 65536\n"
MOUNTS = Clone.NEWNS | Clone.NEWNET


@pytest.mark.parametrize(("uid", "capable", "map", "want"), [
    (0, True, HOST, Backstage(MOUNTS, setgroups=True)),
    (1000, True, HOST, Backstage(MOUNTS, setgroups=True)),
    (0, False, HOST, Backstage(MOUNTS | Clone.NEWUSER, True, "0 0 4294967295", "0 0 4294967295")),
    (0, False, PODMANS, Backstage(MOUNTS | Clone.NEWUSER, True, "0 0 1\n1 1 65536", "0 0 1\n1 1 65536")),
    (1000, False, HOST, Backstage(MOUNTS | Clone.NEWUSER, False, "1000 1000 1", "1001 1001 1")),
], ids=["root", "a user with the right", "a container's root", "Podman's root", "a user"])
def test_a_zygote_gets_its_namespaces(uid: int, capable: bool, map: str, want: Backstage) -> None:
    """A user namespace where mounts take one; every id that a worker may get is in it, by its own number."""
    assert want == decide(uid, 1001 if uid else 0, capable, (map, map))


def view(*targets: str, links: tuple[Symlink, ...] = ()) -> View:
    return View(tuple(Bind(target, target) for target in targets), (), links, Scratch(("/workspace",)))


def test_outer_folders_are_mounted_before_those_inside() -> None:
    """Leeward's own may be around the interpreter's, or inside."""
    made = shown(view("/srv/app/python", "/usr"), [Bind(target, target) for target in ("/srv/app", "/usr/lib/x")])

    assert ["/usr", "/srv/app", "/usr/lib/x", "/srv/app/python"] == [bind.target for bind in made.binds]


def test_no_link_stands_where_a_folder_has_to_be() -> None:
    links = tuple(Symlink(target, to) for target, to in (
        ("/var/tmp", "/tmp"), ("/home/sandbox", "/workspace"), ("/etc/mtab", "/proc/self/mounts"), ("/tmp", "/x")))
    made = shown(view("/var/tmp/env", links=links), [Bind("/home/sandbox/leeward", "/home/sandbox/leeward")])

    assert ["/etc/mtab"] == [link.target for link in made.links]
