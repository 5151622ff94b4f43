"""Contexts of TLS of modules that were imported before there was a sandbox."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from leeward.daemon.pool import seals
from leeward.inside import reseeding


@pytest.fixture(autouse=True)
def forgotten():
    yield
    reseeding._contexts.clear()


def test_contexts_trust_the_last_certificate_of_the_file(tmp_path: Path) -> None:
    """Those that verify hosts; another context stays as it is."""
    early, other = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    file = tmp_path / "certificates.pem"
    first, last = seals.make_for_lease(0).certificate, seals.make_for_lease(0).certificate
    file.write_bytes(first + last)
    reseeding.find_contexts(str(file))
    reseeding.tell_contexts()
    name = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    name.load_verify_locations(cadata=last.decode())
    assert name.get_ca_certs() == early.get_ca_certs()
    assert not other.get_ca_certs()


def test_a_missing_or_empty_file_of_certificates_is_ignored(tmp_path: Path) -> None:
    early = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    reseeding.find_contexts(str(tmp_path / "none"))
    reseeding.tell_contexts()
    (tmp_path / "empty").touch()
    reseeding.find_contexts(str(tmp_path / "empty"))
    reseeding.tell_contexts()
    assert not early.get_ca_certs()
