"""
Changes of a sandbox's copy of a project: requests for them, and the live sync in both directions.

Runs in:   the operator's program that decides, in a thread for each sandbox with live sync.
Trust:     none in a sandbox's copy.
"""
