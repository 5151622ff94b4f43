"""
Pushes: a bare repository in the sandbox, the service's own for what comes out of it, and the push to the real remote.

Runs in:   the operator's program that decides; git as its child.
Trust:     none in what a sandbox has pushed.
"""
