"""
One runner and what runs in it: its birth, its states, one job or a session's jobs, their output and the report.

Runs in:   the daemon, and `leeward run`.
Trust:     none in bytes from a runner's pipes: the job chooses them.
"""
