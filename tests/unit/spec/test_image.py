"""What a sandbox in an image shows beside the image's own files."""

from __future__ import annotations

from leeward.isolation import landlock
from leeward.spec.limits import Limits
from leeward.spec.profiles.image import ImagePlan, image
from leeward.spec.profiles.python import HostPython, python

HOST = python(HostPython("/usr/bin/python3", (3, 11), "/usr"), {"/bin": "usr/bin"}, limits=Limits(), terminal=True,
              memory_counted=False)
PLAN = ImagePlan("debian", ("/store/a", "/store/b"), (("PATH", "/app"), ("GOMAXPROCS", "7")), "/app", 33, 44,
                 "/home/web", handed=True)


def test_nothing_of_the_host_but_devices() -> None:
    """Of these none that can't be written: Landlock's rule for the root would allow it."""
    spec = image(HOST, PLAN)

    assert {f"/dev/{name}" for name in ("null", "full", "random", "urandom", "tty")} == {
        bind.target for bind in spec.view.binds}
    assert "/dev/zero" in {text.target for text in spec.view.texts}  # a file of zeros
    assert all(text.target.startswith("/sys/") for text in spec.view.texts if text.target != "/dev/zero")
    assert all(link.target.startswith("/dev/") for link in spec.view.links)
    assert spec.view.root is not None
    assert (("/store/a", "/store/b"), True) == (spec.view.root.layers, spec.view.root.handed)
    assert {"/etc/hosts", "/etc/hostname", "/etc/resolv.conf"} == {text.target for text in spec.view.root.texts}


def test_the_images_own_variables_count() -> None:
    """Before leeward's, of which those about its interpreter are left out."""
    spec = image(HOST, PLAN)
    env = dict(spec.environment)

    assert (33, 44, "/app") == (spec.uid, spec.gid, spec.cwd)
    assert ("/app", "7", "/home/web", "C.UTF-8") == (env["PATH"], env["GOMAXPROCS"], env["HOME"], env["LANG"])
    assert not {"PYTHONDONTWRITEBYTECODE", "TMPDIR", "USER"} & env.keys()


def test_landlock_has_one_rule_for_the_root_and_one_for_each_device() -> None:
    plan = landlock.plan(image(HOST, PLAN).view, landlock.NEWEST)
    rights = {rule.path: rule.access for rule in plan.rules}
    devices = landlock.FsAccess.MAKE_CHAR | landlock.FsAccess.MAKE_BLOCK | landlock.FsAccess.IOCTL_DEV

    assert {"/", "/dev/pts", "/dev/shm", *(f"/dev/{name}" for name in ("null", "full", "random", "urandom", "tty"))} == set(
        rights)
    assert not rights["/"] & devices


def test_zeros_are_the_devices_where_a_cgroup_counts_what_is_mapped_of_it() -> None:
    counted = python(HostPython("/usr/bin/python3", (3, 11), "/usr"), {"/bin": "usr/bin"}, limits=Limits(), terminal=True,
                     memory_counted=True)
    view = image(counted, PLAN).view

    assert "/dev/zero" in {bind.target for bind in view.binds}
    assert "/dev/zero" not in {text.target for text in view.texts}
    assert view.root is not None
    assert not view.root.zeros
