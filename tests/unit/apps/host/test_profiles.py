"""The profiles that are shipped."""

from __future__ import annotations

import json

import pytest

from leeward.apps.host.profiles import NEEDED, REFUSED, text
from leeward.errors import BadRequest
from leeward.isolation.seccomp.syscalls import ALL


def test_every_call_is_in_the_seccomp_profile_once():
    profile = json.loads(text("seccomp"))
    names = [name for row in profile["syscalls"] for name in row["names"]]

    assert sorted(ALL) == sorted(names)
    assert "SCMP_ACT_ERRNO" == profile["defaultAction"]
    assert 38 == profile["defaultErrnoRet"]  # which C libraries know what to do about


def test_the_tables_are_of_calls_that_exist_and_are_disjoint():
    needed = {name for names in NEEDED.values() for name in names.split()}
    refused = {name for names in REFUSED.values() for name in names.split()}

    assert needed | refused <= set(ALL)
    assert not needed & refused


def test_calls_that_change_the_hosts_kernel_are_refused():
    refused = {name for row in json.loads(text("seccomp"))["syscalls"] if "SCMP_ACT_ALLOW" != row["action"]
               for name in row["names"]}

    assert {"bpf", "finit_module", "init_module", "kexec_load", "keyctl", "open_by_handle_at", "perf_event_open",
            "reboot", "settimeofday", "swapon", "userfaultfd"} <= refused


def test_the_apparmor_profile_is_attached_to_the_program_that_is_installed():
    profile = text("apparmor", "/opt/lee ward/bin/leeward")

    assert 'profile leeward "/opt/lee ward/bin/leeward" flags=(unconfined) {' in profile.splitlines()
    assert "  userns," in profile.splitlines()
    assert "/usr/bin/leeward" not in profile


@pytest.mark.parametrize("path", ['/opt/"/leeward', "/opt/*/x", "/opt/{a,b}/x", "/opt/@{HOME}/x", "/opt/a\n/x"])
def test_a_path_that_would_mean_something_else_is_refused(path: str):
    with pytest.raises(BadRequest):
        text("apparmor", path)
