from __future__ import annotations

import pytest

from leeward.approvals.git_host import GitFailed, git, without_password


def test_passwords_of_addresses_are_left_out() -> None:
    said = "fatal: unable to access 'https://me:secret@example.org/x.git/': no, https://token@b.example"

    assert "fatal: unable to access 'https://example.org/x.git/': no, https://b.example" == without_password(said)
    assert "git@example.org:x.git" == without_password("git@example.org:x.git")


def test_a_failure_says_what_git_said(tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(GitFailed, match=r"git rev-parse: |git: no such file"):
        git("rev-parse", "--verify", "HEAD", folder=str(tmp_path_factory.mktemp("none")))
