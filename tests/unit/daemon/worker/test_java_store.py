"""The store of certificates, as Java's own program reads it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from kit.egress_hosts import AUTHORITY
from leeward.daemon.pool import seals
from leeward.daemon.worker import java_store

#: A certificate that no program can read as text, between two that are whole.
BROKEN = b"-----BEGIN CERTIFICATE-----\nA\n-----END CERTIFICATE-----\n"


@pytest.mark.needs("usr-java")
@pytest.mark.parametrize("words", [[], ["-storepass", "changeit"]], ids=["unchecked", "checked"])
def test_java_reads_all_certificates(tmp_path: Path, words: list[str]) -> None:
    """With the password it compares the digest."""
    own = seals.make_for_lease(0).certificate
    begun = java_store.beginning(b"# of a host\n" + AUTHORITY.encode() + BROKEN + AUTHORITY.encode())
    (tmp_path / "store").write_bytes(begun + java_store.rest(begun, own))
    got = subprocess.run(["keytool", "-list", "-keystore", tmp_path / "store", *words], input="\n", check=False,
                         capture_output=True, text=True)

    assert ["0", "1", "3"] == sorted(re.findall(r"^(\d+), .*trustedCertEntry", got.stdout, re.MULTILINE)), got
