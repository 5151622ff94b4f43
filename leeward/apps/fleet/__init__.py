"""
Jobs and sandboxes on several daemons: of one host, of a list of hosts, or of a cluster of Ray's.

Runs in:   a client's process; with Ray also in one actor for each of its nodes.
"""
