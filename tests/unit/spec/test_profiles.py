"""
The python profile: what a job sees, decided without looking at any host.
"""

from __future__ import annotations

from leeward.spec import profiles
from leeward.spec.limits import Limits
from leeward.spec.profiles import HostPython

MERGED = {"/bin": "usr/bin", "/sbin": "usr/sbin", "/lib": "usr/lib", "/lib64": "usr/lib64"}


def _targets(host: HostPython, links: dict[str, str]) -> set[str]:
    return {bind.target for bind in profiles.python(host, links, limits=Limits()).view.binds}


def test_links_of_the_host_stay_links_and_folders_are_bound():
    host = HostPython("/usr/bin/python3.11", (3, 11), "/usr")

    merged = profiles.python(host, MERGED, limits=Limits()).view
    split = _targets(host, {})

    assert {"/bin", "/lib64"} <= {link.target for link in merged.links}
    assert not {"/bin", "/lib64"} & {bind.target for bind in merged.binds}
    assert {"/usr", "/bin", "/sbin", "/lib", "/lib64"} <= split


def test_an_interpreter_elsewhere_is_shown_where_it_is():
    host = HostPython("/opt/py/bin/python3.12", (3, 12), "/opt/py", env="/srv/env")

    targets = _targets(host, MERGED)

    assert {"/opt/py", "/srv/env"} <= targets
    assert not {"/opt", "/srv"} & targets


def test_a_folder_inside_another_one_is_shown_once():
    host = HostPython("/srv/py/bin/python3", (3, 12), "/srv/py", env="/srv/py/envs/a")

    assert "/srv/py/envs/a" not in _targets(host, MERGED)


def test_nothing_of_the_host_is_writable():
    view = profiles.python(HostPython("/usr/bin/python3", (3, 11), "/usr"), MERGED, limits=Limits()).view

    assert ("/workspace", "/tmp", "/dev/shm") == view.scratch.targets
    assert {bind.target for bind in view.binds if bind.device} == {
        "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"}
    for hidden in ("/root", "/home", "/var", "/run", "/tmp", "/sys", "/dev", "/etc"):
        assert hidden not in {bind.target for bind in view.binds}


def test_the_environment_holds_nothing_of_the_daemons():
    environment = dict(profiles.python(HostPython("/usr/bin/python3", (3, 11), "/usr"), MERGED,
                                       limits=Limits()).environment)

    assert ("/workspace", "C.UTF-8", "/tmp") == tuple(environment[name] for name in ("HOME", "LANG", "TMPDIR"))
    assert "1" == environment["OPENBLAS_NUM_THREADS"]
