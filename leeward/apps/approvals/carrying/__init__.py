"""
Carrying out: what approved requests change in a project's files, and the commands that they run.

Runs in:   the operator's program that decides, in threads of its own.
Trust:     none in an order but that it is the one that was shown; it is compared with the host once more.
"""
