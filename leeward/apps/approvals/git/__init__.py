"""
The service's own repositories for what comes out of sandboxes, and the push to the real remote.

Runs in:   the operator's program that decides; git as its child.
Trust:     none in what a sandbox has pushed.
"""
