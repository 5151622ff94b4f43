"""
Makes the programs of the package from the seccomp table: plan, compile, shorten, check.

Runs in:   a developer's shell and the tests. Nothing that serves jobs imports it.
"""
