"""
From the seccomp table to the programs in `_generated_programs`: plan, compile, shorten, check.

Runs in:   a developer's shell and the tests. Nothing that serves jobs imports it.
"""
