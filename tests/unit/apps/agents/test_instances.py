"""The registry: who runs, who was killed, and what has to be undone."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.apps.agents.instance_names import instance_name, names_of
from leeward.apps.agents.instances import (
    MAX_ENDED,
    HeldInstance,
    Instance,
    InstanceRegistry,
    UndoStep,
    identity_of,
    parse_instance,
)
from leeward.apps.agents.state_files import StateNotWritten
from leeward.errors import BadRequest, Busy, Unsupported

PROJECT = b"/home/me/p\xff"


@pytest.fixture
def registry(tmp_path):
    return InstanceRegistry(str(tmp_path / "state"))


def instance(number=0, started=1.0, agent="claude"):
    return Instance(instance_name(PROJECT, agent, number), agent, os.fsdecode(PROJECT), 7, started)


def test_a_running_instance_is_listed_and_found(registry):
    held = registry.claim(instance())
    other = registry.claim(instance(started=0.5, agent="codex"))
    name = held.instance.name

    assert [other.instance, held.instance] == registry.running()
    for text in (name, name[:8], name[-6:], "claude") if name[:8] != other.instance.name[:8] else (name, name[-6:],
                                                                                                  "claude"):
        assert held.instance == registry.find(text)
    assert [] == list(registry.reap())
    with pytest.raises(BadRequest, match="fits none of the running agents"):
        registry.find("nobody")
    with pytest.raises(BadRequest, match="fits several of the running agents"):
        registry.find("home-me")
    with pytest.raises(BadRequest):
        registry.find("")


def test_a_name_is_taken_once(registry):
    held = registry.claim(instance())
    with pytest.raises(Busy):
        registry.claim(instance())
    held.remove()

    registry.claim(instance()).remove()


def test_a_recorded_instance_survives_and_is_undone(registry):
    """Released without being removed, as the kernel does when the process is killed."""
    held = registry.claim(instance())
    steps = (UndoStep("hook", "echo a\nb"), UndoStep("sandbox", "abc"))
    held.record(replace(held.instance, sandbox="abc", hosts=("a.example.org",), undo=steps))
    held.close()

    assert [] == registry.running()
    with pytest.raises(Busy):
        registry.claim(instance())
    left = list(registry.reap())
    assert [steps] == [each.instance.undo for each in left]
    assert os.fsdecode(PROJECT) == left[0].instance.project
    assert [] == list(registry.reap())  # it is held while somebody undoes it
    left[0].close()
    (again,) = registry.reap()
    again.remove()
    assert [] == list(registry.reap())
    registry.claim(instance()).remove()


CHILD = """
import sys, time
from leeward.apps.agents.instances import Instance, InstanceRegistry, UndoStep
registry = InstanceRegistry(sys.argv[1])
held = registry.claim(Instance(sys.argv[2], "shell", "/p", 7, 1.0, undo=(UndoStep("hook", "x"),)))
print("held", flush=True)
time.sleep(600)
"""


def test_a_killed_process_releases_its_lock(registry, tmp_path):
    name = instance_name(PROJECT, "shell")
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path / "state"), name], stdout=subprocess.PIPE)
    try:
        assert b"held\n" == child.stdout.readline()
        assert [name] == [each.name for each in registry.running()]
        assert [] == list(registry.reap())
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()

    assert [] == registry.running()
    (left,) = registry.reap()
    assert (UndoStep("hook", "x"),) == left.instance.undo
    left.remove()


def test_a_lock_without_a_record_is_removed(registry, tmp_path):
    (tmp_path / "state" / "instances" / "a-b-c.lock").touch()

    assert [] == list(registry.reap())
    assert [] == os.listdir(tmp_path / "state" / "instances")


def test_a_file_without_a_lock_is_undone(registry, tmp_path):
    held = registry.claim(instance())
    held.close()
    os.unlink(tmp_path / "state" / "instances" / f"{held.instance.name}.lock")

    (left,) = registry.reap()
    left.remove()
    assert [] == os.listdir(tmp_path / "state" / "instances")


def test_an_empty_file_of_a_machine_crash_is_removed(registry, tmp_path):
    """The content of one without hooks isn't waited for. It mustn't keep its name, nor be told for ever."""
    held = registry.claim(instance())
    path = tmp_path / "state" / "instances" / f"{held.instance.name}.json"
    path.write_bytes(b"")

    assert [] == list(registry.reap())  # whoever holds it is about to write it
    held.close()
    assert [] == list(registry.reap())
    assert [] == registry.complaints()
    assert [] == os.listdir(path.parent)


def test_the_hook_of_an_earlier_version_is_carried_out(registry, tmp_path):
    held = registry.claim(replace(instance(), undo=(UndoStep("hook", "x"),)))
    path = tmp_path / "state" / "instances" / f"{held.instance.name}.json"
    row = {**json.loads(path.read_text()), "memory": 8 << 30}
    del row["folder"]
    path.write_text(json.dumps(row))
    held.close()

    (left,) = registry.reap()
    assert (UndoStep("hook", "x"),) == left.instance.undo
    left.remove()


CORRUPT = [b" ", b"{", b"null", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"name": 1}', b"x" * (2 << 20)]


def test_a_folder_is_told_from_another_with_its_path(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "file").write_text("")
    one = identity_of(str(tmp_path / "one"))
    (tmp_path / "one").rename(tmp_path / "moved")
    (tmp_path / "one").mkdir()

    assert one == identity_of(str(tmp_path / "moved")) != identity_of(str(tmp_path / "one"))
    assert one.startswith(f"{os.geteuid()}:")
    assert ["", ""] == [identity_of(str(tmp_path / name)) for name in ("gone", "file")]


@pytest.mark.parametrize("content", CORRUPT)
def test_a_corrupt_file_is_reported_and_left(registry, tmp_path, content):
    held = registry.claim(instance())
    good = registry.claim(instance(1))
    path = tmp_path / "state" / "instances" / f"{held.instance.name}.json"
    path.write_bytes(content)

    assert [good.instance] == registry.running()
    assert 1 == len(registry.complaints())
    assert str(path) in registry.complaints()[0]
    assert "\n" not in registry.complaints()[0]
    held.close()
    assert [] == list(registry.reap())
    assert path.exists()


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("/etc/passwd", path)])
@pytest.mark.timeout(10)
def test_an_entry_that_is_no_regular_file_is_left(registry, tmp_path, make):
    path = tmp_path / "state" / "instances" / "a-b-c.json"
    make(path)

    assert [] == registry.running()
    assert [] == list(registry.reap())
    assert 1 == len(registry.complaints())


def test_files_of_other_names_are_left(registry, tmp_path):
    folder = tmp_path / "state" / "instances"
    (folder / "Not A Name.json").write_text("{}")
    (folder / ".a-b-c.json.tmp").write_text("{}")

    assert [] == registry.running()
    assert [] == registry.complaints()


def test_an_instance_of_another_name_is_no_instance(registry, tmp_path):
    held = registry.claim(instance())
    folder = tmp_path / "state" / "instances"
    (folder / "a-b-c.json").write_bytes((folder / f"{held.instance.name}.json").read_bytes())

    assert [] == list(registry.reap())
    assert ["name of another agent" in line for line in registry.complaints()] == [True]


def test_a_folder_of_others_is_refused(tmp_path):
    (tmp_path / "state").mkdir(mode=0o755)

    with pytest.raises(Unsupported, match="chmod 700"):
        InstanceRegistry(str(tmp_path / "state"))


def test_no_other_user_can_replace_the_folder(tmp_path):
    before = os.umask(0)
    try:
        InstanceRegistry(str(tmp_path / "state/leeward/agents"))
    finally:
        os.umask(before)
    assert {0o40700} == {path.stat().st_mode for path in tmp_path.rglob("*")}
    assert 4 == len([*tmp_path.rglob("*")])


def test_every_name_is_claimed_by_one_of_many(registry, tmp_path):
    """Many starts at once, each with the registry's object of its own: every name has one holder."""
    names = list(names_of(PROJECT, "claude"))[:4]
    won: list[HeldInstance] = []
    start = threading.Barrier(8)

    def claim():
        mine = InstanceRegistry(str(tmp_path / "state"))
        start.wait()
        for name in names:
            try:
                won.append(mine.claim(replace(instance(), name=name)))
                return
            except Busy:
                pass

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(names) == sorted(held.instance.name for held in won)
    for held in won:
        held.remove()


TEXTS = st.text(st.characters(blacklist_characters="\0", blacklist_categories=()), max_size=20)


@given(TEXTS, st.lists(st.tuples(st.sampled_from(["sandbox", "hook"]), TEXTS), max_size=3), st.lists(TEXTS, max_size=3))
def test_an_instance_is_read_as_it_was_written(text, steps, hosts):
    from leeward.apps.agents.instances import _encoded

    whole = Instance("a-b-c", text, "/" + text, 1, 2.5, text, tuple(hosts), tuple(UndoStep(*step) for step in steps))

    assert whole == parse_instance(_encoded(whole))


VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
                      lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner,
                                                                                  max_size=3), max_leaves=6)
KEYS = ["name", "agent", "project", "pid", "started", "sandbox", "hosts", "undo"]
GOOD = {"name": "a-b-c", "agent": "a", "project": "/p", "pid": 1, "started": 1.0, "sandbox": "",
        "hosts": [], "undo": []}


@given(st.binary(max_size=100) | VALUES.map(lambda value: json.dumps(value).encode())
       | st.tuples(st.sampled_from(KEYS), VALUES).map(lambda pair: json.dumps({**GOOD, pair[0]: pair[1]}).encode()))
def test_any_content_is_an_instance_or_a_value_error(content):
    try:
        found = parse_instance(content)
    except ValueError:
        return
    assert isinstance(found, Instance)
    assert all(isinstance(step, UndoStep) for step in found.undo)


def test_a_full_disk_leaves_what_was_there(tmp_path, registry, monkeypatch):
    """No instance is half claimed, and one that runs keeps its file."""
    held = registry.claim(instance())

    def full(fd):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StateNotWritten, match="no space left"):
        held.record(replace(held.instance, undo=(UndoStep("hook", "x"),)))
    with pytest.raises(StateNotWritten, match="no space left"):
        registry.claim(replace(instance(number=1), undo=(UndoStep("hook", "x"),)))
    assert [held.instance] == registry.running()
    held.remove()
    assert [] == os.listdir(tmp_path / "state/instances")  # neither had a sandbox


def test_a_state_folder_that_cannot_be_made():
    with pytest.raises(Unsupported, match="XDG_STATE_HOME"):
        InstanceRegistry("/proc/none/state")


def test_the_sandbox_of_one_that_has_ended(registry):
    """The last ones are remembered; of the same name the latest, and one that runs before all."""
    for number in range(MAX_ENDED + 3):
        held = registry.claim(replace(instance(number=number), sandbox=f"dx{number}"))
        held.remove()
    name = instance(number=MAX_ENDED + 2).name
    assert f"dx{MAX_ENDED + 2}" == registry.sandbox_of(name)
    assert f"dx{MAX_ENDED + 2}" == registry.sandbox_of("home-me-p-claude")
    assert f"dx{MAX_ENDED + 2}" == registry.sandbox_of("claude")
    with pytest.raises(BadRequest, match="no agent runs"):
        registry.sandbox_of(instance(number=0).name)
    registry.claim(replace(instance(number=MAX_ENDED + 2), sandbox="again")).remove()
    assert "again" == registry.sandbox_of(name)
    held = registry.claim(replace(instance(number=1000), sandbox="runs"))
    assert "runs" == registry.sandbox_of("home-me-p-claude")
    assert [] == registry.complaints()
    held.remove()


@pytest.mark.parametrize("content", [b"", b"../x", b"\xff", b"a" * 100, None])
def test_a_record_of_an_end_that_is_none(tmp_path, registry, content):
    held = registry.claim(replace(instance(), sandbox="dx"))
    name = held.instance.name
    held.remove()
    file = tmp_path / "state/instances/ended" / name
    file.unlink()
    if content is None:
        os.mkfifo(file)
    else:
        file.write_bytes(content)
    with pytest.raises(BadRequest):
        registry.sandbox_of(name)


def test_an_instance_may_be_recorded_later(registry, tmp_path):
    held = registry.claim(instance(), later=True)
    with pytest.raises(Busy):
        registry.claim(instance())
    assert [] == registry.running() == registry.complaints() == list(registry.reap())

    held.record(held.instance)
    assert [held.instance] == registry.running()
    held.remove()

    registry.claim(instance(), later=True).close()  # killed before it was recorded
    assert [] == list(registry.reap())
    assert [] == os.listdir(tmp_path / "state" / "instances")
