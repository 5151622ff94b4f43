"""
What runs under attacker control: reads the job, runs it, says how it ended.

Runs in:   the job's process, after the last lock. Imports `wire` alone.
Trust:     none. Whatever this does well, a job can undo; the daemon takes it as hostile bytes.
"""
