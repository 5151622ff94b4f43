"""The policy that `leeward env setup` writes."""

from __future__ import annotations

import functools
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from kit.loopback import Quiet, serving
from leeward.daemon.config_sources import load
from leeward.errors import BadRequest
from leeward_cli import env_setup
from leeward_cli.env_setup import PackageIndex, links_of, look, with_policy, write
from leeward_cli.environments import env

PUBLIC = PackageIndex("https://index.example/simple/", ("https://index.example", "https://files.example:8443"), ())


MANY = json.dumps({"files": [{"url": f"https://h{number}.example/f"} for number in range(20)]}).encode()


class _Pages(Quiet):
    def __init__(self, pages: dict[str, tuple[int, str, bytes]], *rest: object) -> None:
        self.pages = pages
        super().__init__(*rest)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        status, kind, body = self.pages.get(self.path, (404, "text/plain", b""))
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def pages() -> Iterator[tuple[str, dict[str, tuple[int, str, bytes]]]]:
    """The URL of a server, and its pages."""
    found: dict[str, tuple[int, str, bytes]] = {}
    with serving(functools.partial(_Pages, found)) as port:
        yield f"http://127.0.0.1:{port}", found


def test_an_index_says_from_where_its_files_come(pages) -> None:
    url, found = pages
    files = {"files": [{"url": "https://files.example/a.whl"}, {"url": "../b.whl"}, {"url": "file:///etc/passwd"}, {"url": 5},
                       {"url": "https://x y/c.whl"}, {"url": "https://files.example:99999/d.whl"}, 7]}
    found["/simple/pip/"] = (200, "application/vnd.pypi.simple.v1+json", json.dumps(files).encode())
    assert PackageIndex(f"{url}/simple/", (url, "https://files.example"), ("127.0.0.1/32",)) == look(f"{url}/simple", "")
    shown = CliRunner().invoke(env, ["setup", "--show", "--index-url", f"{url}/simple"])
    assert (0, f"allowed, while packages are installed: {url} https://files.example") == (
        shown.exit_code, shown.stdout.splitlines()[1]), shown
    found["/simple/pip/"] = (200, "text/html; charset=utf-8", b'<a href="http://other.example/x.whl#sha256=1">x</a><a>y</a>')
    assert (url, "http://other.example") == look(f"{url}/simple/", "").origins
    found.clear()  # a mirror without that project
    assert (url,) == look(f"{url}/simple/", "").origins


@pytest.mark.parametrize(("status", "kind", "body", "why"), [
    (500, "text/html", b"", "status 500"), (200, "application/json", b"{", "doesn't answer"),
    (200, "application/json", b"[" * 100_000, "doesn't answer"),
    (200, "application/json", b"[]", None), (200, "application/json", b'{"files": {}}', None),
    (200, "application/json", MANY, "21 hosts"),
    (200, "text/html", b"<a href=x>" * (2 << 20), "doesn't answer")])
def test_a_page_of_an_index_is_bounded(pages, status, kind, body, why) -> None:
    url, found = pages
    found["/pip/"] = (status, kind, body)
    if why is None:
        assert (url,) == look(url, "").origins
        return
    with pytest.raises(BadRequest, match=why):
        look(url, "")


@pytest.mark.parametrize("url", ["", "ftp://a/", "https:///x", "https://user:word@index.example/simple", "/folder"])
def test_what_can_be_no_index_is_refused(url: str) -> None:
    with pytest.raises(BadRequest) as refused:
        look(url, "")
    assert "word@" not in str(refused.value)


def test_nobody_listens() -> None:
    with pytest.raises(BadRequest, match="doesn't answer"):
        look("http://127.0.0.1:9/simple", "")


def test_a_server_that_speaks_no_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        def answer() -> None:
            with server.accept()[0] as made:
                made.recv(4096)
                made.sendall(b"SSH-2.0-x\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(BadRequest, match="doesn't answer"):
            look(f"http://127.0.0.1:{server.getsockname()[1]}/", "")
        thread.join()


@pytest.mark.parametrize("text", ["[", "a = " + "[" * 5000, "x = \udcff"])
def test_a_configuration_that_is_no_toml_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="no TOML"):
        with_policy(text, PUBLIC)


def test_links_of_a_page_without_files() -> None:
    assert [] == links_of(b"<html>", "text/html")


@pytest.mark.parametrize("text", ["", "pool_size = 3\n", "# mine\n[limits]\nmemory = 67108864", "[egress.o]\nallow = []\n"])
def test_the_policy_goes_into_the_configuration(text: str, tmp_path: Path) -> None:
    """And what was there holds."""
    path = tmp_path / "a/config.toml"
    path.parent.mkdir()
    if text:
        path.write_text(text)
        path.chmod(0o600)
    before = load(str(path), environ={}, system_file="/none") if text else None
    write(str(path), PUBLIC)
    config = load(str(path), environ={}, system_file="/none")
    assert ("packages", PUBLIC.url) == (config.environments_egress, config.environments_index)
    assert {"packages"} <= set(config.egress)
    assert text in path.read_text()
    if before:
        assert (before.pool_size, before.limits) == (config.pool_size, config.limits)
        assert 0o600 == path.stat().st_mode & 0o777
    assert ["config.toml"] == os.listdir(path.parent)
    with pytest.raises(BadRequest, match="already; nothing was written"):
        write(str(path), PUBLIC)


@pytest.mark.parametrize("text", ["environments_egress = 'mine'", "[egress.packages]\nallow = []", "environments_index = 'https://a'"])
def test_what_somebody_has_configured_stays(text: str) -> None:
    with pytest.raises(BadRequest):
        with_policy(text, PUBLIC)


def test_a_configuration_that_the_daemon_refuses_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("pool_size = -1\n")
    with pytest.raises(BadRequest):
        write(str(path), PUBLIC)
    assert "pool_size = -1\n" == path.read_text()
    link = tmp_path / "link.toml"
    link.symlink_to(path)
    with pytest.raises(BadRequest, match="symbolic link"):
        write(str(link), PUBLIC)
    assert {"config.toml", "link.toml"} == set(os.listdir(tmp_path))


def test_addresses_of_a_private_network_are_named() -> None:
    private = PackageIndex("http://10.0.0.1/", ("http://10.0.0.1",), ("10.0.0.1/32",))
    assert 'addresses = ["10.0.0.1/32"]' in with_policy("", private)
    assert "addresses" not in with_policy("", PUBLIC)


@pytest.mark.parametrize(("said", "found"), [
    ("", ("https://default/", "")), ("global.index-url='https://a/'\nglobal.cert='/c'\n", ("https://a/", "/c")),
    ("global.index-url='https://a/'\ninstall.index-url='https://b/'\n", ("https://b/", "")),
    (":env:.index-url='https://e/'\nglobal.index-url='https://a/'\nsite.x='y'\nnonsense\n", ("https://e/", ""))])
def test_pip_says_which_index_it_uses(said: str, found: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env_setup, "_pip", lambda *words: said)
    monkeypatch.setattr(env_setup, "_default_index", lambda: "https://default/")
    assert found == env_setup.pips_index("")
    assert ("https://named/", found[1]) == env_setup.pips_index("https://named/")
