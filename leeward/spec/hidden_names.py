"""
Names of files with secrets in a project, which sandboxes over it don't show.

Runs in:   anywhere; pure.
"""

from __future__ import annotations

#: Names that are hidden at any depth, as globs.
SECRET_FILES = (".env", ".env.*", ".envrc", "*.env")

#: Files whose names match one of these, and that are shown: they say which variables there are, without the values.
EXAMPLES = (".env.example", ".env.sample", ".env.template", ".env.dist")
