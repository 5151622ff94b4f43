"""
An image in a registry, as a source of layers: the registry API v2, over HTTPS.

Trust:     none in what is answered. Sizes are bounded, digests are checked by whoever reads to the end, and no text of an
           answer gets into an error.
Secrets:   what `docker login` has left goes to the registry, and to the server of tokens that it names over HTTPS. Where a
           registry redirects to gets neither, unless that is the registry itself.
Source:    OCI distribution-spec; docs.docker.com/reference/api/registry/auth; docker login(1), config.json
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import ipaddress
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urljoin, urlsplit

from leeward.apps.images.sources import MOST_JSON, FoundImage, of_manifest
from leeward.apps.images.streams import BadImage
from leeward.errors import BadRequest, Unsupported, quoted

if TYPE_CHECKING:
    import httpx2  # of an extra

#: Docker's own registry: its name in references, its host, and its name in the file of `docker login`.
_DOCKER, _DOCKER_HOST, _DOCKER_LOGIN = "docker.io", "registry-1.docker.io", "https://index.docker.io/v1/"
_HOST = re.compile(r"[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?|\[[0-9a-f:]{2,45}\](:[0-9]{1,5})?")
_REPOSITORY = re.compile(r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*")
_TAG, _DIGEST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"), re.compile(r"sha256:[0-9a-f]{64}")
_MANIFESTS = ", ".join(f"application/vnd.{each}+json" for each in (
    "oci.image.index.v1", "oci.image.manifest.v1", "docker.distribution.manifest.list.v2", "docker.distribution.manifest.v2"))
#: Bytes of a token's answer and of the file of `docker login`; redirects in a row; beginnings of one blob.
_MOST_TOKEN, _MOST_LOGINS, _MOST_REDIRECTS, _TRIES = 1 << 20, 1 << 20, 5, 4
#: Seconds to wait for a connection, and for bytes.
_CONNECT_S, _READ_S = 10.0, 60.0
_ELSE = "`skopeo copy` to an archive, and `leeward image import`"


@dataclass(frozen=True, slots=True)
class Reference:
    """What names an image: the registry's host, perhaps with a port, the repository in it, and a tag or digest."""

    host: str
    repository: str
    tag: str
    digest: str = ""

    def __str__(self) -> str:
        return f"{self.host}/{self.repository}:{self.tag}" + (f"@{self.digest}" if self.digest else "")


def reference(text: str) -> Reference:
    """Read a reference as docker does: "debian" is "docker.io/library/debian:latest"; BadRequest."""
    rest, at, digest = text.partition("@")
    host, slash, path = rest.partition("/")
    if not slash or not ("." in host or ":" in host or host == "localhost"):
        host, path = _DOCKER, rest
    path, colon, tag = path.partition(":")
    if host in (_DOCKER, f"index.{_DOCKER}"):
        host, path = _DOCKER, path if "/" in path else f"library/{path}"
    found = Reference(host, path, tag if colon else "latest", digest)
    if not (_HOST.fullmatch(host) and _REPOSITORY.fullmatch(path) and len(path) <= 255 and _TAG.fullmatch(found.tag)
            and (not at or _DIGEST.fullmatch(digest))):
        raise BadRequest(f"{quoted(text)[:300]} names no image: [HOST[:PORT]/]REPOSITORY[:TAG][@sha256:DIGEST]")
    return found


def logins() -> dict[str, Any]:
    """The content of the file that `docker login` writes; {} if there is none; BadRequest if it can't be read."""
    folder = os.environ.get("DOCKER_CONFIG") or os.path.join(os.environ.get("HOME", "/"), ".docker")
    path = os.path.join(folder, "config.json")
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read(_MOST_LOGINS))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise BadRequest(f"{quoted(path)} can't be read ({type(error).__name__})") from None
    return found if isinstance(found, dict) else {}


def _login(found: Mapping[str, Any], host: str) -> str:
    """The value of a Basic header for *host*, "" for none; BadRequest for a login that is kept in another way."""
    names = (_DOCKER_LOGIN, _DOCKER) if host == _DOCKER_HOST else (host, f"https://{host}", f"https://{host}/v2/")
    auths, helpers = found.get("auths"), found.get("credHelpers")
    rows = [auths[name] for name in names if isinstance(auths, dict) and isinstance(auths.get(name), dict)]
    for row in rows:
        secret = row.get("auth")
        if row.get("identitytoken"):
            raise BadRequest(f"the login for {host} is an identity token, which isn't used; {_ELSE}")
        with contextlib.suppress(ValueError):
            if isinstance(secret, str) and secret and b":" in base64.b64decode(secret, validate=True):
                return f"Basic {secret}"
    if (isinstance(helpers, dict) and any(name in helpers for name in names)) or (rows and found.get("credsStore")):
        raise BadRequest(f"the login for {host} is in a credential store, which isn't asked; {_ELSE}")
    return ""


@contextlib.contextmanager
def pull(ref: Reference, mirror: str = "") -> Iterator[FoundImage]:
    """
    The image *ref*, within the context, whose layers are read from its registry, or from the *mirror*, a URL.

    Raises:
        BadRequest: the registry doesn't answer, has no such image, or wants a login.
        BadImage: it answers what it can't.
        Unsupported: httpx2 isn't installed, or there is no image for this machine.
    """
    try:
        import httpx2  # of an extra
    except ModuleNotFoundError:
        raise Unsupported("pulling from a registry", have="no httpx2", need="httpx2",
                          cure=f"pip install 'leeward[images]', or {_ELSE}") from None
    base = _base(mirror, ref)
    with httpx2.Client(timeout=httpx2.Timeout(_READ_S, connect=_CONNECT_S)) as client:
        blobs = _RegistryBlobs(client, base, ref, _login(logins(), urlsplit(base).netloc))
        yield of_manifest(blobs, {"digest": blobs.top()}, str)


def _base(mirror: str, ref: Reference) -> str:
    """The URL before /v2/: HTTP for this machine alone, unless the mirror says so."""
    if not mirror:
        host = _DOCKER_HOST if ref.host == _DOCKER else ref.host
        return f"{'http' if _is_local(urlsplit(f'//{host}').hostname or '') else 'https'}://{host}"
    parts = urlsplit(mirror)
    if parts.scheme not in ("https", "http") or not _HOST.fullmatch(parts.netloc) or parts.query or parts.fragment:
        raise BadRequest(f"{quoted(mirror)[:300]} is no mirror: https://HOST[:PORT][/PATH], or http://")
    return mirror.rstrip("/")


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _RegistryBlobs:
    """
    The manifests and blobs of one repository, by their digests. What they are and how long is known from those that name
    them.
    """

    def __init__(self, client: httpx2.Client, base: str, ref: Reference, login: str) -> None:
        self._client, self._base, self._ref, self._login = client, base, ref, login
        asked = urlsplit(base).netloc  # perhaps a mirror
        self._host = _DOCKER if asked == _DOCKER_HOST else asked
        self._authorization = ""
        self._blobs: dict[str, int] = {}
        self._manifests: dict[str, int] = {}
        self._read: dict[str, bytes] = {}

    def top(self) -> str:
        """Read the manifest that the reference names. Returns its digest, which a reference may demand."""
        data = self._manifest(self._ref.digest or self._ref.tag)
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if self._ref.digest not in ("", digest):
            raise BadImage("the manifest has another digest than the reference")
        self._learn(digest, data)
        return digest

    def size(self, name: str) -> int:
        if name in self._manifests and name not in self._read:
            self._learn(name, self._manifest(name))
        return len(self._read[name]) if name in self._read else self._blobs.get(name, -1)

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[_BlobStream]:
        if name in self._read:
            yield _BlobStream(None, name, 0, self._read[name])
            return
        stream = _BlobStream(self, name, self._blobs[name])
        try:
            yield stream
        finally:
            stream.close()

    def _manifest(self, name: str) -> bytes:
        with self.answer(f"manifests/{name}", {"Accept": _MANIFESTS}) as answer:
            return _whole(answer, MOST_JSON)

    def _learn(self, digest: str, data: bytes) -> None:
        """Keep a manifest, and what it says of others; whether it is right is checked by whoever uses it."""
        self._read[digest] = data
        found: object = None
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(data)
        if not isinstance(found, dict):
            return
        for rows, into in ((found.get("manifests"), self._manifests), (found.get("layers"), self._blobs),
                           ([found.get("config")], self._blobs)):
            for row in rows[:1024] if isinstance(rows, list) else ():
                if isinstance(row, dict) and isinstance(name := row.get("digest"), str) and _DIGEST.fullmatch(name):
                    size = row.get("size")
                    into[name] = size if isinstance(size, int) and 0 <= size < 1 << 50 else -1

    # --- requests -----------------------------------------------------------------------

    @contextlib.contextmanager
    def answer(self, path: str, headers: Mapping[str, str]) -> Iterator[httpx2.Response]:
        """The answer of the repository to GET *path*, behind its redirects, with a login if it wants one."""
        for attempt in (1, 2):
            with self._redirected(f"{self._base}/v2/{self._ref.repository}/{path}", headers) as answer:
                if answer.status_code == 401 and attempt == 1:
                    self._authorize(answer.headers.get("www-authenticate", ""))
                    continue
                self._check(answer.status_code)
                yield answer
                return

    @contextlib.contextmanager
    def _redirected(self, url: str, headers: Mapping[str, str]) -> Iterator[httpx2.Response]:
        for _ in range(_MOST_REDIRECTS + 1):
            own = _origin(url) == _origin(self._base)
            more = {"Authorization": self._authorization} if own and self._authorization else {}
            with self._get(url, {**headers, **more}) as answer:
                if answer.status_code == 401 and not own:  # it would say who gets the password
                    self._check(answer.status_code)
                if answer.status_code not in (301, 302, 303, 307, 308):
                    yield answer
                    return
                url = self._next(url, answer.headers.get("location", ""))
        raise BadImage(f"the registry {self._host} redirects for ever")

    def _next(self, url: str, location: str) -> str:
        with contextlib.suppress(ValueError):
            to = urljoin(url, location)
            parts = urlsplit(to)
            same = _origin(to)[:2] == _origin(self._base)[:2]  # HTTP leads to no host but the registry's own
            if parts.hostname and parts.username is None and (parts.scheme == "https" or (parts.scheme == "http" and same)):
                return to
        raise BadImage(f"the registry {self._host} redirects to where nothing is asked")

    @contextlib.contextmanager
    def _get(self, url: str, headers: Mapping[str, str]) -> Iterator[httpx2.Response]:
        import httpx2  # of an extra

        try:
            with self._client.stream("GET", url, headers={"Accept-Encoding": "identity", "User-Agent": "leeward", **headers},
                                     auth=None, follow_redirects=False) as answer:
                yield answer
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL) as error:
            raise NoRegistry(f"the registry {self._host} doesn't answer ({type(error).__name__})") from None

    def _check(self, status: int) -> None:
        if status in (401, 403):
            raise BadRequest(f"the registry {self._host} shows {self._ref.repository} only to whom it knows:"
                             f" `docker login {self._host}`")
        if status == 404:
            raise BadRequest(f"the registry {self._host} has no {self._ref.repository}:{self._ref.tag}")
        if status not in (200, 206):
            raise BadRequest(f"the registry {self._host} answers with status {status}")

    def _authorize(self, challenge: str) -> None:
        """Get what a challenge asks for: a password, or a token for reading this repository."""
        kind, _, rest = challenge.partition(" ")
        if kind.lower() == "basic":
            self._authorization = self._login
            return
        about = dict(re.findall(r'([a-z]{1,20})="([^"\\]{0,2000})"', rest[:8192]))
        realm = about.get("realm", "")
        local = urlsplit(self._base).scheme == "http" and _origin(realm)[:2] == _origin(self._base)[:2]
        if kind.lower() != "bearer" or urlsplit(realm).username is not None or not (realm.startswith("https://") or local):
            raise BadImage(f"the registry {self._host} asks for a login in a way that isn't known")
        scope = {"service": about.get("service", ""), "scope": f"repository:{self._ref.repository}:pull"}
        headers = {"Authorization": self._login} if self._login else {}
        with self._get(f"{realm}{'&' if '?' in realm else '?'}{urlencode(scope)}", headers) as answer:
            self._check(answer.status_code)
            data = _whole(answer, _MOST_TOKEN)
        token: object = None
        with contextlib.suppress(ValueError, RecursionError, AttributeError):
            found = json.loads(data)
            token = found.get("token") or found.get("access_token")
        if not isinstance(token, str) or not re.fullmatch(r"[!-~]{1,65536}", token):
            raise BadImage(f"the registry {self._host} gives no token")
        self._authorization = f"Bearer {token}"


class NoRegistry(BadRequest):
    """A registry doesn't answer, or has stopped in the middle."""


class _BlobStream:
    """The bytes of a blob, no more than it may have. One that ends early is asked for from there on, a few times."""

    def __init__(self, registry: _RegistryBlobs | None, name: str, size: int, data: bytes = b"") -> None:
        self._registry, self._name, self._left, self._at, self._data = registry, name, size, 0, data
        self._held = contextlib.ExitStack()
        self._pieces: Iterator[bytes] | None = None
        self._begun = 0

    def read(self, size: int, /) -> bytes:
        while not self._data and self._left and self._registry is not None:
            try:
                self._data = self._more(self._registry)[:self._left]
            except NoRegistry:
                self.close()
                if self._begun >= _TRIES:
                    raise
                time.sleep(0.2 * self._begun ** 2)
            self._at += len(self._data)
            self._left -= len(self._data)
        found, self._data = self._data[:size], self._data[size:]
        return found

    def close(self) -> None:
        self._held.close()
        self._pieces = None

    def _more(self, registry: _RegistryBlobs) -> bytes:
        if self._pieces is None:
            self._begun += 1
            headers = {"Range": f"bytes={self._at}-"} if self._at else {}
            answer = self._held.enter_context(registry.answer(f"blobs/{self._name}", headers))
            if self._at and not answer.headers.get("content-range", "").startswith(f"bytes {self._at}-"):
                raise NoRegistry("the registry has stopped in the middle of a layer, and doesn't go on there")
            self._pieces = _pieces(answer)
        found = next(self._pieces, b"")
        if not found:
            raise NoRegistry("the registry has stopped in the middle of a layer")
        return found


def _pieces(answer: httpx2.Response) -> Iterator[bytes]:
    import httpx2  # of an extra

    try:
        yield from answer.iter_raw()  # as they come: what has come stays, if the rest doesn't
    except (httpx2.HTTPError, httpx2.StreamError) as error:
        raise NoRegistry(f"the registry has stopped in the middle ({type(error).__name__})") from None


def _whole(answer: httpx2.Response, most: int) -> bytes:
    data = bytearray()
    for piece in _pieces(answer):
        data += piece
        if len(data) > most:
            raise BadImage(f"a registry answers with more than {most} bytes")
    return bytes(data)


def _origin(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port; ("", "", None) if it can't be."""
    try:
        parts = urlsplit(url)
        return parts.scheme, (parts.hostname or "").lower(), parts.port or {"https": 443, "http": 80}.get(parts.scheme)
    except ValueError:
        return "", "", None
