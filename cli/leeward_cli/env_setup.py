"""
`leeward env setup`: finds the package index that pip uses, and writes the policy that lets pip in a sandbox reach it.

Runs in:   the CLI, by click, as the user whose daemon is to install packages.
Trust:     pip's configuration is the user's own. None in the index: its page is bounded, and names hosts alone, which are
           shown before they are written.
Source:    pip's documents on configuration; PEP 503 and PEP 691, the index's pages
"""

from __future__ import annotations

import html.parser
import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import tomllib
import urllib.error
import urllib.request
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from leeward.base.closing import on_failure
from leeward.base.user_folders import home_folder
from leeward.daemon.config_sources import load
from leeward.errors import BadRequest
from leeward.spec.paths import SYSTEM_FILE, USER_FILE

#: The policy's name.
POLICY = "packages"

#: Bytes of an index's page at most, and seconds to get it.
MOST_PAGE, WAIT_S = 16 << 20, 20.0

#: Hosts that a page may name at most.
MOST_HOSTS = 16

#: A project that every index is likely to have.
_PROJECT = "pip"

_FORMS = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"


@dataclass(frozen=True, slots=True)
class PackageIndex:
    """
    An index, and from where its files come.

    Attributes:
        url: without credentials.
        origins: `https://host:port` of the index and of its files.
        addresses: those of these hosts that aren't public, as networks of one address.
    """

    url: str
    origins: tuple[str, ...]
    addresses: tuple[str, ...]


def pips_index(named: str) -> tuple[str, str]:
    """
    The index that pip of this interpreter uses, unless one is *named*, and the file with the certificates that it
    trusts; "" for the default.

    Raises:
        BadRequest: pip can't be asked.
    """
    found: dict[str, str] = {}
    for line in _pip("config", "list").splitlines():
        name, _, value = line.partition("=")
        where, _, key = name.replace("_", "-").rpartition(".")
        # Later ones count more: those of `install` and `download`, and variables, which pip lists as ":env:".
        rank = {"global": 0, "install": 1, ":env:": 2}.get(where)
        if rank is not None and key in ("index-url", "cert"):
            found[f"{key} {rank}"] = value.strip("'\"")
    index, cert = (next((found[f"{key} {rank}"] for rank in (2, 1, 0) if f"{key} {rank}" in found), "")
                   for key in ("index-url", "cert"))
    return named or index or _default_index(), cert


def _default_index() -> str:
    code = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BadRequest("pip doesn't say which index is its default; name it with --index-url")
    return done.stdout.strip()


def _pip(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BadRequest("this interpreter's pip can't be asked for its index; name it with --index-url")
    return done.stdout


def look(url: str, cert: str) -> PackageIndex:
    """
    Ask the index *url* from where its files come.

    Raises:
        BadRequest: *url* can't be an index here, or it doesn't answer.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("https", "http") or not parts.hostname:
        raise BadRequest(f"the index {url!r} is no URL of http or https")
    if parts.username or parts.password:
        raise BadRequest("the index's URL has a password, which every user of the daemon could read in its configuration:"
                         " put it into [egress.NAME] as a secret, and write the policy yourself (docs/egress.md)")
    url = url.rstrip("/") + "/"
    page = f"{url}{_PROJECT}/"
    request = urllib.request.Request(page, headers={"Accept": _FORMS, "User-Agent": "leeward"})
    try:
        context = ssl.create_default_context(cafile=cert or None) if parts.scheme == "https" else None
        with urllib.request.urlopen(request, timeout=WAIT_S, context=context) as answer:
            links = links_of(answer.read(MOST_PAGE + 1), answer.headers.get_content_type())
            base = answer.url
    except urllib.error.HTTPError as error:
        if error.code not in (403, 404):
            raise BadRequest(f"the index answers {page!r} with status {error.code}") from None
        links, base = [], page  # a mirror that hasn't that project: its files are taken to be its own
    except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
        untrusted = isinstance(getattr(error, "reason", error), ssl.SSLCertVerificationError)
        raise BadRequest(f"the index {url!r} " + (
            "has a certificate that isn't trusted; pip's `cert` names a file with its authority" if untrusted else
            "doesn't answer")) from None
    origins = dict.fromkeys(filter(None, map(_origin, (url, base, *(urljoin(base, link) for link in links)))))
    if len(origins) > MOST_HOSTS:
        raise BadRequest(f"the index's files come from {len(origins)} hosts; write the policy yourself, docs/environments.md")
    return PackageIndex(url, tuple(origins), tuple(dict.fromkeys(each for origin in origins for each in _private(origin))))


def links_of(page: bytes, kind: str) -> list[str]:
    """
    The links of an index's page.

    Raises:
        ValueError: the page is too large, or isn't what *kind* says.
    """
    if len(page) > MOST_PAGE:
        raise ValueError("too large")
    if kind.endswith("json"):
        table = json.loads(page)
        files = table.get("files") if isinstance(table, dict) else None
        return [each["url"] for each in files if isinstance(each, dict) and isinstance(each.get("url"), str)] if isinstance(
            files, list) else []
    links: list[str] = []

    class Anchors(html.parser.HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            links.extend(value for name, value in attrs if tag == "a" and name == "href" and value)

    Anchors().feed(page.decode("utf-8", "replace"))
    return links


def _origin(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return ""
    if parts.scheme not in ("https", "http") or not host or not all(each.isalnum() or each in ".-" for each in host):
        return ""
    return f"{parts.scheme}://{host}" + (f":{port}" if port and port != {"https": 443, "http": 80}[parts.scheme] else "")


def _private(origin: str) -> list[str]:
    """The addresses of a host that aren't public: a policy has to name them."""
    try:
        found = {row[4][0] for row in socket.getaddrinfo(urlsplit(origin).hostname, None, type=socket.SOCK_STREAM)}
    except OSError:
        return []
    addresses = [ip_address(str(each).partition("%")[0]) for each in sorted(map(str, found))]
    return [f"{each}/{each.max_prefixlen}" for each in addresses if not each.is_global]


def config_file(named: str | None) -> str:
    """The file that is written: *named*, else the one that the user's daemon reads by default."""
    if named:
        return os.path.abspath(named)
    return SYSTEM_FILE if os.geteuid() == 0 else os.path.join(home_folder(os.environ), USER_FILE)


def with_policy(text: str, index: PackageIndex) -> str:
    """
    The configuration *text* with the policy for *index*, which is added behind it, and the keys before its first table.

    Raises:
        BadRequest: it has one of these already.
    """
    try:
        has: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError):
        raise BadRequest("the configuration is no TOML; `leeward daemon run --print-config` says where") from None
    if has.get("environments_egress"):
        raise BadRequest(f"environments_egress is {has['environments_egress']!r} already; nothing was written")
    if POLICY in has.get("egress", {}):
        raise BadRequest(f"[egress.{POLICY}] is there already: add environments_egress = \"{POLICY}\" yourself, or rename it")
    if "environments_index" in has:
        raise BadRequest("environments_index is there, and environments_egress isn't: remove the first, or add the second")
    keys = f'environments_egress = "{POLICY}"\nenvironments_index = {json.dumps(index.url)}\n'
    table = f"\n[egress.{POLICY}]\nallow = {json.dumps(list(index.origins))}\n"
    if index.addresses:
        table += f"addresses = {json.dumps(list(index.addresses))}\n"
    return keys + ("\n" if text else "") + text + ("" if not text or text.endswith("\n") else "\n") + table


def write(path: str, index: PackageIndex) -> None:
    """
    Write the policy into the configuration *path*, which is replaced as a whole.

    Raises:
        BadRequest: the file has a policy already, or the daemon would refuse it.
        OSError: it can't be written.
    """
    if os.path.islink(path):
        raise BadRequest(f"{path!r} is a symbolic link; name the file itself by --config")
    old = Path(path).read_text(encoding="utf-8", errors="surrogateescape") if os.path.exists(path) else ""
    text = with_policy(old, index)
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    fd, made = tempfile.mkstemp(prefix=".leeward-", suffix=".toml", dir=os.path.dirname(path))
    with on_failure(os.unlink, made):
        with open(fd, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(file.fileno(), os.stat(path).st_mode & 0o777 if old else 0o644)
            file.flush()
            os.fsync(file.fileno())
        load(made, environ={}, system_file=os.devnull if os.geteuid() else "/nonexistent")
        os.replace(made, path)
