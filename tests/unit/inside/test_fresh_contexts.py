"""Contexts of TLS of modules that were imported before there was a sandbox."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from leeward.daemon.pool import seals
from leeward.inside import reseeding
from leeward.spec.sandbox import FURTHER


@pytest.fixture(autouse=True)
def forgotten():
    yield
    reseeding._contexts.clear()


def test_contexts_trust_what_the_file_has_beyond_the_hosts(tmp_path: Path) -> None:
    """The policy's authorities, and the sandbox's; in contexts that verify hosts, another one stays as it is."""
    early, other = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    file = tmp_path / "certificates.pem"
    first, policys, last = (seals.make_for_lease(0).certificate for _ in range(3))
    file.write_bytes(first + FURTHER + policys + last)
    reseeding.find_contexts(str(file), FURTHER)
    reseeding.tell_contexts()
    name = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    name.load_verify_locations(cadata=(policys + last).decode())
    assert 2 == len(name.get_ca_certs())
    assert name.get_ca_certs() == early.get_ca_certs()
    assert not other.get_ca_certs()


def test_a_missing_or_empty_file_of_certificates_is_ignored(tmp_path: Path) -> None:
    early = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    reseeding.find_contexts(str(tmp_path / "none"), FURTHER)
    reseeding.tell_contexts()
    (tmp_path / "empty").touch()
    reseeding.find_contexts(str(tmp_path / "empty"), FURTHER)
    reseeding.tell_contexts()
    assert not early.get_ca_certs()
