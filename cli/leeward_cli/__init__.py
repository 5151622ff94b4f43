"""
The `leeward` command, but for what its C front does itself.

Runs in:   the CLI, a client's process; `leeward daemon run` and `leeward run` become a daemon.
"""
