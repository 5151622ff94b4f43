"""A small registry on loopback, from an OCI layout: what it is asked, and each way to be awkward."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kit import loopback
from kit.images import oci

TOKEN = "a-token"


@dataclass
class Registry:
    """
    Attributes:
        blobs: by digest.
        asked: path, its `Authorization` and its `Range`, in order.
        wants: the `WWW-Authenticate` of those who aren't known, "" if all are; `accepts` is what they then send.
        token: what the server of tokens answers, at /token.
        elsewhere: the base of the URL to which blobs are redirected.
        cuts: how many answers with a blob end in the middle.
    """

    port: int = 0
    blobs: dict[str, bytes] = field(default_factory=dict)
    top: str = ""
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    wants: str = ""
    accepts: str = "nobody"
    token: bytes = json.dumps({"token": TOKEN}).encode()
    elsewhere: str = ""
    cuts: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def fill(self, path: Path, layers: list[bytes], **more: object) -> None:
        """The image of these layers, whatever it is called; *path* is a new folder."""
        oci(path, layers, **more)  # type: ignore[arg-type]
        self.blobs |= {f"sha256:{each.name}": each.read_bytes() for each in (path / "blobs/sha256").iterdir()}
        self.top = json.loads((path / "index.json").read_text())["manifests"][0]["digest"]

    def put(self, data: bytes) -> str:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.blobs[digest] = data
        return digest


@contextlib.contextmanager
def serving() -> Iterator[Registry]:
    made = Registry()

    class Handler(loopback.Quiet):
        def do_GET(self) -> None:
            heads = self.headers
            made.asked.append((self.path, heads.get("Authorization", ""), heads.get("Range", "")))
            if self.path.startswith("/token"):
                self.give(200, made.token)
            elif made.wants and heads.get("Authorization", "") != made.accepts:
                self.give(401, b"who are you", {"WWW-Authenticate": made.wants})
            elif "/blobs/" in self.path and made.elsewhere:
                self.give(307, b"", {"Location": made.elsewhere + self.path})
            else:
                name = self.path.rpartition("/")[2]
                data = made.blobs.get(name if ":" in name else made.top)
                self.give(404 if data is None else 200, data or b"")

        def give(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
            begin, whole = 0, len(data)
            if status == 200 and (wanted := self.headers.get("Range")):
                begin, status = int(wanted.removeprefix("bytes=").rstrip("-")), 206
                headers = {"Content-Range": f"bytes {begin}-{whole - 1}/{whole}"}
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(whole - begin))
            self.end_headers()
            if "/blobs/" in self.path and status in (200, 206) and made.cuts:
                made.cuts -= 1
                data = data[:begin + (whole - begin) // 2]
                self.close_connection = True
            self.wfile.write(data[begin:])

    with loopback.serving(Handler) as made.port:
        yield made
