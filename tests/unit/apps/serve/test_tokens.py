"""The file of tokens."""

from __future__ import annotations

import errno
import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from leeward.apps.serve.tokens import FLEET, TenantQuota, TokenFile, quota_of
from leeward.errors import BadRequest


@pytest.fixture
def file(tmp_path):
    return TokenFile(str(tmp_path / "new" / "serve.json"))


def test_a_token_is_found_and_isnt_stored(file):
    token = file.create("one", TenantQuota(jobs=3), ("build",), ("web",))
    file.look()
    found = file.find(token)

    assert ("one", 3, ("build",), ("web",)) == (found.name, found.quota.jobs, found.profiles, found.egress)
    assert token not in Path(file.path).read_text()
    assert token.startswith("e2b_")
    assert 0o600 == os.stat(file.path).st_mode & 0o777
    assert file.find(token[:-1] + "x") is None
    assert file.find(token * 10) is None
    assert file.find("\ud800") is None


def test_another_program_sees_what_has_changed(file):
    other = TokenFile(file.path)
    token = file.create("one")
    assert other.look()
    assert other.find(token)
    assert not other.look()

    assert file.revoke("one")
    assert not file.revoke("one")
    assert other.look()
    assert other.find(token) is None


def test_the_same_name_is_another_tenant(file):
    file.create("one")
    first = file.tenants()[0].id
    with pytest.raises(BadRequest, match="there is a token for one"):
        file.create("one")
    file.revoke("one")
    file.create("one")

    assert first != file.tenants()[0].id


@pytest.mark.parametrize("name", ["", "-x", "a b", "a/b", "x" * 65, "\n", "é"])
def test_a_name_is_plain(file, name):
    with pytest.raises(BadRequest, match="is no name"):
        file.create(name)


@pytest.mark.parametrize("content", [
    b"", b"{", b"[]", b"{}", b'{"key": "00", "tenants": []}', b"\xff", b"[" * 100_000, b'{"key": null, "tenants": null}',
    b'{"key": "%s", "tenants": [{"hash": "", "name": "", "id": "", "quota": {"sandboxes": Infinity}}]}' % (b"00" * 32)])
def test_a_file_that_is_none_lets_nobody_in(file, content):
    token = file.create("one")
    file.look()
    with open(file.path, "wb") as opened:
        opened.write(content)
    file._looked = float("-inf")

    with pytest.raises(BadRequest, match="isn't what `leeward serve token` writes"):
        file.fresh()
    assert file.find(token) is None


def test_a_folder_that_cannot_be_searched_lets_nobody_in(file, monkeypatch):
    token = file.create("one")
    file.look()
    file._looked = float("-inf")
    monkeypatch.setattr(os, "stat", Mock(side_effect=OSError(errno.EIO, "")))

    with pytest.raises(OSError, match="5"):
        file.fresh()
    assert file.find(token) is None


def test_a_file_that_others_can_read_is_refused(file):
    file.create("one")
    os.chmod(file.path, 0o644)
    with pytest.raises(BadRequest, match="chmod 600"):
        file.tenants()


def test_a_link_in_the_files_place_is_refused(file, tmp_path):
    file.create("one")
    os.rename(file.path, tmp_path / "moved")
    os.symlink(tmp_path / "moved", file.path)
    with pytest.raises(BadRequest, match="can't be read"):
        file.tenants()


def test_tokens_of_sandboxes_are_of_one_sandbox_and_purpose(file):
    file.create("one")
    file.look()
    token = file.derived("envd", "a" * 26)

    assert token == file.derived("envd", "a" * 26)
    assert 3 == len({token, file.derived("envd", "b" * 26), file.derived("traffic", "a" * 26)})
    assert file.is_derived("envd", "a" * 26, token)
    assert not file.is_derived("envd", "b" * 26, token)
    assert not file.is_derived("envd", "a" * 26, "\ud800")


def test_programs_that_write_at_the_same_time_lose_nothing(file):
    threads = [threading.Thread(target=TokenFile(file.path).create, args=(f"t{at}",)) for at in range(12)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert 12 == len(file.tenants())
    assert 12 == len(json.loads(Path(file.path).read_text())["tenants"])


def test_a_quota_is_numbers_by_name():
    assert TenantQuota(body=1 << 20, rate=5) == quota_of({"body": "1M", "rate": "5"})
    for words in ({"x": "1"}, {"rate": "-1"}, {"rate": "many"}):
        with pytest.raises(BadRequest):
            quota_of(words)


def test_servers_share_quotas_but_for_what_all_count_together(file):
    token = file.create("one", TenantQuota(sandboxes=10, jobs=5, rate=7, body=9))
    found = TokenFile(file.path, servers=2)
    found.look()
    shared = found.find(token)

    assert (10, 3, 4, 9) == (shared.quota.sandboxes, shared.quota.jobs, shared.quota.rate, shared.quota.body)
    assert shared == found.by_id(shared.id)
    found.create("other")
    assert TenantQuota(sandboxes=10, jobs=5, rate=7, body=9) == file.tenants()[0].quota  # the file has the whole


def test_a_token_is_a_fleets_if_it_was_made_so(file):
    tokens = file.create("one"), file.create("two", fleet=True)
    file.look()

    assert [False, True] == [file.find(each).fleet for each in tokens]
    assert quota_of({"jobs": "7"}, FLEET) == replace(FLEET, jobs=7)
