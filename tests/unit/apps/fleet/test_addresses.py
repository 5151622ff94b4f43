"""Where a fleet's nodes are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from leeward.apps.fleet.addresses import Address, address_of, addresses_of, configured, nodes_in
from leeward.errors import BadRequest, RequestRejected


def written(folder: Path, text: str, mode: int = 0o600) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "fleet.toml").write_text(text)
    (folder / "fleet.toml").chmod(mode)
    return folder / "fleet.toml"


def test_an_address_is_named_by_its_path():
    assert Address("/run/a.sock", "/run/a.sock") == address_of("unix:/run/a.sock")


def test_a_table_has_more():
    given = {"address": "unix:/run/a.sock", "name": "a", "tags": ["arch:x86_64"], "resources": {"gpu": 8}}

    assert Address("/run/a.sock", "a", frozenset({"arch:x86_64"}), {"gpu": 8.0}) == address_of(given)


@pytest.mark.parametrize("given", [
    "http://192.0.2.1:80", "https://", "https://a:x", "https://u:p@a", "ssh://a",
    {"address": "https://a", "token": 3},
    {"address": "unix:/a", "token": "e2b_x"}, {"address": "https://a", "token": "a\nb"}, "unix:relative",
    "/run/a.sock", "", {"name": "a"}, {"address": 3},
    {"address": "unix:/a", "name": ""}, {"address": "unix:/a", "name": "a\n"}, {"address": "unix:/a", "tags": "gpu"},
    {"address": "unix:/a", "tags": 3}, {"address": "unix:/a", "resources": {"gpu": "8"}},
    {"address": "unix:/a", "resources": {"gpu": -1}}, {"address": "unix:/a", "resources": {"gpu": float("nan")}},
    {"address": "unix:/a", "resources": {"gpu": True}}, {"address": "unix:/a", "resources": ["gpu"]},
    {"address": "unix:/a", "tag": ["x"]},
])
def test_what_is_no_address_is_refused(given: Any):
    with pytest.raises(RequestRejected):
        address_of(given)


def test_two_nodes_have_two_names():
    with pytest.raises(RequestRejected, match="two nodes are called 'a'"):
        addresses_of([{"address": "unix:/a", "name": "a"}, {"address": "unix:/b", "name": "a"}])


def test_the_variable_comes_first(tmp_path: Path):
    written(tmp_path / "leeward", 'nodes = ["unix:/file"]')
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}

    assert ["unix:/file"] == configured(environ)
    assert ["unix:/a", "unix:/b"] == configured({**environ, "LEEWARD_FLEET": " unix:/a  unix:/b "})
    assert "auto" == configured({**environ, "LEEWARD_FLEET": "auto"})
    assert "ray://head:10001" == configured({**environ, "LEEWARD_FLEET": "ray://head:10001"})


def test_the_files_cluster(tmp_path: Path):
    assert "auto" == nodes_in(str(written(tmp_path, 'nodes = "auto"')))


@pytest.mark.parametrize("text", ["", "nodes = []", "nodes = 3", 'nodes = "unix:/a"', "nodes = [3]", "nodes = [", "\0"])
def test_a_file_that_is_wrong_is_refused(tmp_path: Path, text: str):
    path = written(tmp_path, text)

    with pytest.raises(BadRequest, match=str(path)):
        nodes_in(str(path))


def test_a_file_that_others_write_is_refused(tmp_path: Path):
    path = written(tmp_path, 'nodes = ["unix:/a"]', 0o666)

    with pytest.raises(BadRequest, match="lets others write it"):
        nodes_in(str(path))


def test_no_nodes_say_where_to_write_them(tmp_path: Path):
    with pytest.raises(BadRequest, match=f"{tmp_path}/.config/leeward/fleet.toml or LEEWARD_FLEET"):
        configured({"HOME": str(tmp_path)})


def test_another_machine_is_a_url_with_a_token():
    found = address_of({"address": "https://a:8443", "token": "e2b_x"})

    assert ("https://a:8443", "https://a:8443") == (found.socket, found.name)
    assert "e2b_x" == found.socket.token  # type: ignore[attr-defined]  # it is a RemoteHost
    assert "e2b_x" not in repr(found)


def test_tokens_that_everybody_can_read_are_refused(tmp_path: Path):
    text = 'nodes = [{address = "https://a", token = "e2b_x"}]'

    with pytest.raises(BadRequest, match="chmod 640"):
        nodes_in(str(written(tmp_path, text, 0o644)))
    assert [{"address": "https://a", "token": "e2b_x"}] == nodes_in(str(written(tmp_path, text, 0o640)))
    assert ["https://a"] == nodes_in(str(written(tmp_path, 'nodes = ["https://a"]', 0o644)))
