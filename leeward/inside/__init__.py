"""
The code beside a job, under the attacker's control: reads the job, runs it, reports how it ended.

Runs in:   the job's process, after the last lock. Imports `wire` alone.
Trust:     none. A job can change anything that this code does; the daemon treats its output as hostile.
"""
