"""
The `leeward` command, except for the parts that the command in C does itself.

Runs in:   the CLI, a client's process; `leeward daemon run` and `leeward run` become a daemon.
"""
