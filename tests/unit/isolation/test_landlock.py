"""The Landlock plan: what is denied at each ABI, and what each part of a view allows."""

from __future__ import annotations

import ast
import errno
import os
import struct
from dataclasses import replace

import pytest

from kit.unclosed import close_garbage
from leeward._native.landlock import FsAccess, NetAccess, RestrictSelf, Scope
from leeward._native.steps import Block, Call, Cell, Gives, Table
from leeward.errors import Bug, Unsupported
from leeward.isolation import landlock
from leeward.spec.sandbox import Bind, Scratch, Symlink, Text, View

VIEW = View(
    binds=(Bind("/usr", "/usr"), Bind("/home/a/python", "/opt/python"), Bind("/missing", "/opt/site", optional=True),
           Bind("/dev/null", "/dev/null", device=True)),
    texts=(Text("/etc/passwd", b""), Text("/etc/hosts", b""), Text("/etc/ssl/cert.pem", b"")),
    links=(Symlink("/bin", "usr/bin"), Symlink("/dev/fd", "/proc/self/fd")),
    scratch=Scratch(("/workspace", "/tmp", "/dev/shm")),
)


def access(plan: landlock.LandlockPlan) -> dict[str, FsAccess]:
    return {rule.path: FsAccess(rule.access) for rule in plan.rules}


@pytest.mark.parametrize(("abi", "fs", "net", "scoped", "flags"), [
    # The widths in bits are the kernel's own, LANDLOCK_LAST_* of each version.
    (1, (1 << 13) - 1, 0, 0, 0),
    (2, (1 << 14) - 1, 0, 0, 0),
    (3, (1 << 15) - 1, 0, 0, 0),
    (4, (1 << 15) - 1, 3, 0, 0),
    (5, (1 << 16) - 1, 3, 0, 0),
    (6, (1 << 16) - 1, 3, 3, 0),
    (7, (1 << 16) - 1, 3, 3, 5),
    (8, (1 << 16) - 1, 3, 3, 5),
    (9, (1 << 17) - 1, 3, 3, 5),
    (10, (1 << 17) - 1, 15, 3, 5),
    (11, (1 << 17) - 1, 15, 3, 5),
])
def test_every_right_of_an_abi_is_denied(abi, fs, net, scoped, flags):
    """A right that the kernel could restrict and the plan didn't would be open to all."""
    got = landlock.plan(VIEW, abi)

    assert (fs, net, scoped, flags) == (got.fs, got.net, got.scoped, got.flags)
    assert abi == got.abi


def test_a_newer_kernel_gets_the_newest_known_plan():
    """What comes after NEWEST isn't guessed."""
    assert landlock.plan(VIEW, landlock.NEWEST) == landlock.plan(VIEW, landlock.NEWEST + 30)


@pytest.mark.parametrize("abi", range(1, landlock.NEWEST + 1))
def test_no_rule_holds_a_right_that_its_abi_lacks(abi):
    """The kernel would refuse the rule, and the sandbox with it."""
    got = landlock.plan(VIEW, abi)

    assert all(rule.access and not rule.access & ~got.fs for rule in got.rules)


@pytest.mark.parametrize("abi", range(1, landlock.NEWEST + 1))
def test_no_rule_covers_the_sealed_file(abi):
    """The self-check opens it and must fail."""
    paths = [rule.path for rule in landlock.plan(VIEW, abi).rules]

    assert "/" not in paths
    assert not [path for path in paths if (landlock.SEALED + "/").startswith(path + "/")]


@pytest.mark.parametrize("view", [
    View((Bind("/", "/"),), (), (), Scratch(())),
    View((Bind("/usr", "//"),), (), (), Scratch(())),
    View((), (), (), Scratch(("/tmp/..",))),
    View((), (Text(landlock.SEALED, b""),), (), Scratch(())),
    View((Bind("/usr", "usr"),), (), (), Scratch(())),
])
def test_a_view_that_would_cover_the_sealed_file_is_a_bug(view):
    """However the path is written."""
    with pytest.raises(Bug):
        landlock.plan(view, 7)


def test_every_part_of_a_view_has_its_rights():
    """Binds are read and run, texts read, scratch is free, devices are devices."""
    read_only = FsAccess.READ_FILE | FsAccess.READ_DIR | FsAccess.EXECUTE
    data = FsAccess.READ_FILE | FsAccess.READ_DIR
    scratch = FsAccess((1 << 15) - 1) & ~(FsAccess.MAKE_CHAR | FsAccess.MAKE_BLOCK)

    assert access(landlock.plan(VIEW, 7)) == {
        "/dev/null": FsAccess.READ_FILE | FsAccess.WRITE_FILE | FsAccess.IOCTL_DEV,
        "/dev/shm": scratch,
        "/etc": data,
        "/etc/ssl": data,
        "/opt/python": read_only,
        "/opt/site": read_only,
        "/proc": data,
        "/tmp": scratch,
        "/usr": read_only,
        "/workspace": scratch,
    }


def test_only_an_optional_bind_may_be_missing():
    """Any other path that isn't there means that the mount layer is wrong."""
    assert [rule.path for rule in landlock.plan(VIEW, 7).rules if rule.optional] == ["/opt/site"]


def test_rights_on_one_path_add_up():
    """A folder of texts that is a bind too can still be run from."""
    view = View((Bind("/srv/etc", "/etc", optional=True),), (Text("/etc/hosts", b""),), (), Scratch(()))

    (etc,) = [rule for rule in landlock.plan(view, 7).rules if rule.path == "/etc"]

    assert etc.access & FsAccess.EXECUTE
    assert not etc.optional


def test_a_text_in_the_root_gets_a_rule_of_its_own():
    """Its folder would be "/"."""
    view = View((), (Text("/motd", b""),), (), Scratch(()))

    assert ["/motd", "/proc"] == [rule.path for rule in landlock.plan(view, 7).rules]


def test_a_text_that_is_a_program_can_be_run_and_its_neighbours_cannot():
    """Its folder's other texts are data."""
    view = View((), (Text("/own/program", b"", program=True), Text("/own/data", b"")), (), Scratch(()))
    rules = {rule.path: rule.access for rule in landlock.plan(view, 7).rules}

    assert FsAccess.EXECUTE | FsAccess.READ_FILE == rules["/own/program"]
    assert not rules["/own"] & FsAccess.EXECUTE


def test_without_landlock_the_plan_is_refused():
    """The message says how to get it, and how to go without."""
    with pytest.raises(Unsupported, match=r"landlock: have none.*lsm=landlock.*--allow-degraded landlock"):
        landlock.plan(VIEW, 0)


def test_without_landlock_the_operator_may_allow_an_empty_plan():
    """It enforces nothing, and entering it does nothing."""
    empty = landlock.plan(VIEW, 0, allow_missing=True)

    assert (0, 0, 0, 0, ()) == (empty.abi, empty.fs, empty.net, empty.scoped, empty.rules)
    assert [] == landlock.steps(empty)
    assert [] == landlock.deny_all_steps(Cell("ruleset"), 0)


@pytest.mark.parametrize(("abi", "fs", "scoped"), [
    (5, 0, 0), (6, 0, Scope.ABSTRACT_UNIX_SOCKET | Scope.SIGNAL),
    (11, FsAccess.RESOLVE_UNIX, Scope.ABSTRACT_UNIX_SOCKET | Scope.SIGNAL)])
def test_what_a_sandbox_shares_is_about_other_processes(abi: int, fs: int, scoped: int) -> None:
    """Its processes' own rules have the rest, and together they deny what one ruleset would."""
    plan = landlock.plan(VIEW, abi)
    attributes = [step.arguments[0] for step in landlock.steps(plan, Cell("ruleset"))
                  if Call.LANDLOCK_CREATE_RULESET == step.call]

    own, *shared = [struct.unpack("QQQ", each.data) for each in attributes if isinstance(each, Block)]

    assert (plan.fs & ~fs, plan.net, plan.scoped & ~scoped) == own
    assert ([(fs | FsAccess.REFER, 0, scoped)] if scoped else []) == shared
    assert 6 * len(shared) == len(landlock.domain_steps(plan))


def test_names_are_the_kernel_s():
    """Spot checks against <linux/landlock.h>."""
    assert 1 << 13 == FsAccess.REFER
    assert 1 << 16 == FsAccess.RESOLVE_UNIX
    assert 1 << 3 == NetAccess.CONNECT_SEND_UDP
    assert 1 << 1 == Scope.SIGNAL
    assert RestrictSelf.LOG_SAME_EXEC_OFF | RestrictSelf.LOG_SUBDOMAINS_OFF == 5


@pytest.mark.parametrize("optional", [False, True])
def test_only_optional_paths_may_be_refused(optional):
    """A required path that is missing stops the steps. So does a ruleset that isn't enforced, in any case."""
    rule = landlock.PathRule("/srv", int(FsAccess.READ_FILE), optional)
    plan = landlock.LandlockPlan(1, int(FsAccess.READ_FILE), 0, 0, 0, (rule,))
    opened, added, closed, *last = landlock.steps(plan)[1:]

    assert [optional] * 3 == [Gives.ANYTHING == opened.gives, len(added.answers) > 1, len(closed.answers) > 1]
    assert [(0,), (0,)] == [step.answers for step in last]
    assert {Gives.NOTHING} == {step.gives for step in (added, closed, *last)}


RULES = (landlock.PathRule("/dev", int(FsAccess.READ_DIR)), landlock.PathRule("/dev/shm", int(FsAccess.READ_DIR)),
         landlock.PathRule("/missing", int(FsAccess.READ_DIR), optional=True), landlock.PathRule("/proc", 4),
         landlock.PathRule("/usr", int(FsAccess.READ_FILE), optional=True))
SHARED = landlock.LandlockPlan(1, int(FsAccess.READ_FILE | FsAccess.READ_DIR), 0, 0, 0, RULES)


def test_a_keeper_holds_what_is_the_same_in_all_runners(monkeypatch) -> None:
    """Not what a runner mounts itself: these are other files in each."""
    first = landlock.HELD
    assert {"/dev": first, "/missing": first + 1, "/usr": first + 2} == landlock.held(SHARED, ("/proc", "/dev/shm"))
    assert "/dev/shmall" in landlock.held(replace(SHARED, rules=(landlock.PathRule("/dev/shmall", 1),)), ("/dev/shm",))
    many = tuple(landlock.PathRule(f"/{number}", 1) for number in range(200))
    assert 128 > max(landlock.held(replace(SHARED, rules=many), ()).values())
    monkeypatch.setattr(landlock, "HOLD", False)
    assert {} == landlock.held(SHARED, ())


def test_each_held_number_is_in_use() -> None:
    """Also that of a path that doesn't exist: the keeper would have something else there later, and a runner a rule on it."""
    out, told = os.pipe()
    held = landlock.held(SHARED, ("/proc", "/dev/shm"))
    pid = os.fork()
    if 0 == pid:
        try:
            table = Table(landlock.hold_steps(SHARED, held))
            os.dup2(told, 1)
            os.closerange(3, landlock.HELD + 100)
            close_garbage()
            before = os.listdir("/proc/self/fd")
            table.run()
            added = sorted(map(int, set(os.listdir("/proc/self/fd")) - set(before)))
            seen = [(fd, os.readlink(f"/proc/self/fd/{fd}"), os.get_inheritable(fd)) for fd in added]
            os.write(1, repr(seen).encode())
        except BaseException as error:
            os.write(1, repr(repr(error)).encode())
        finally:
            os._exit(0)
    os.close(told)
    os.waitpid(pid, 0)
    with open(out) as said:
        assert [(landlock.HELD, "/dev", False), (landlock.HELD + 1, "/dev/null", False),
                (landlock.HELD + 2, "/usr", False)] == ast.literal_eval(said.read())


def test_a_number_that_is_taken_stops_the_keeper() -> None:
    steps = landlock.hold_steps(SHARED, {"/dev": landlock.HELD})
    assert [(landlock.HELD,)] == [step.answers for step in steps if step.call is Call.FCNTL]


def test_what_is_held_is_not_opened_again() -> None:
    held = landlock.held(SHARED, ("/proc", "/dev/shm"))
    made = landlock.steps(SHARED, held=held)

    assert ["/dev/shm", "/proc"] == [step.arguments[1] for step in made if step.call is Call.OPENAT]
    rules = [step for step in made if step.call is Call.LANDLOCK_ADD_RULE]
    assert len(RULES) == len(rules)
    assert [struct.pack("=Qi", RULES[0].access, held["/dev"]), struct.pack("=Qi", RULES[4].access, held["/usr"])] == [
        rules[number].arguments[2].data for number in (0, 4)]
    assert [True, False] == [-errno.EBADF in rules[number].answers for number in (2, 0)]
    assert [(landlock.HELD, landlock.HELD + 2, 0)] == [step.arguments for step in landlock.let_go_steps(held)]
    assert [] == landlock.let_go_steps({})


def test_a_listed_folder_shows_names_alone() -> None:
    """The root's rule covers all folders, the sealed file among them: it gives no right to what they hold."""
    view = View((Bind("/usr", "/usr"),), (), (), Scratch(()), listed=("/", "/usr"))

    got = access(landlock.plan(view, 7))

    assert FsAccess.READ_DIR == got["/"]
    assert FsAccess.READ_FILE | FsAccess.READ_DIR | FsAccess.EXECUTE == got["/usr"]


def test_terminals_get_ioctls_and_loopback_no_rule() -> None:
    """A rule names one port; with loopback a server may take any."""
    view = View((), (), (), Scratch(()), terminals=3)

    got = landlock.plan(view, 7, loopback=True)

    assert FsAccess.READ_FILE | FsAccess.WRITE_FILE | FsAccess.READ_DIR | FsAccess.IOCTL_DEV == access(got)["/dev/pts"]
    assert 0 == got.net != landlock.plan(view, 7).net
    assert got.scoped == landlock.plan(view, 7).scoped
