"""
The matrix: kernel and way of running; and which tests are worth their time in an emulated machine.

Runs in:   the host. Pure.

A processor in software is ten to twenty times slower, and so is a test that starts processes. So there are
three forms: CORE, a test or two of each layer, which CI runs on three rows; SHORT, for one row by command; and
whatever pytest is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

from vm.kernels import KERNELS


@dataclass(frozen=True, slots=True)
class Row:
    """
    Attributes:
        kernel: of KERNELS.
        user: as an ordinary one; else as root.
        systemd: in a group that it delegates; else in one that a script has made.
    """

    kernel: str
    user: bool = False
    systemd: bool = False

    @property
    def way(self) -> str:
        return f"{'a user' if self.user else 'root'}{', systemd' if self.systemd else ''}"

    @property
    def name(self) -> str:
        return f"{self.kernel}-{'user' if self.user else 'root'}{'-systemd' if self.systemd else ''}"

    @property
    def command(self) -> str:
        """By which it is recorded."""
        return f"./dev vm --kernel {self.kernel}{' --user' * self.user}{' --systemd' * self.systemd} --record"


ALL = tuple(Row(kernel, user, systemd) for kernel in KERNELS for systemd in (False, True) for user in (False, True))

#: One of each that this project's own machines are not: what most users have, whose systemd takes half of its minute;
#: what a server has; and the oldest.
CI = (Row("6.1", user=True, systemd=True), Row("6.12"), Row("5.10", user=True))

_CGROUP = "tests/integration/test_cgroup.py"

#: Each layer once, in one sandbox; and version 2 of cgroups alone, which few machines that build this have.
CORE = (
    "tests/vm/test_layers.py",
    f"{_CGROUP}::test_a_share_of_the_processor_is_kept_within_a_twentieth[v2-50]",
    *(f"{_CGROUP}::{name}[v2]" for name in (
        "test_kill_ends_all", "test_a_worker_enters_its_own_leaves_and_no_others",
        "test_a_sweep_removes_groups_of_a_dead_daemon")),
)

SHORT = (
    "tests/vm/test_layers.py", "tests/vm/test_product.py", "tests/vm/test_switches.py", "tests/vm/test_service.py",
    "tests/vm/test_reboot.py",
    "tests/integration/test_host.py::test_switches_of_the_whole_kernel", _CGROUP,
    "tests/integration/test_mounts.py", "tests/integration/test_namespaces.py", "tests/integration/test_privileges.py",
    "tests/integration/test_landlock.py", "tests/integration/test_seccomp.py",
    "tests/integration/test_supervisor_watches.py", "tests/integration/test_watching_programs.py::test_names_are_told",
    "tests/integration/test_daemon_life.py::test_start_and_stop",
)


if "__main__" == __name__:
    print(*sorted({row.kernel for row in CI}))
