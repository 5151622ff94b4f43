"""
Which worker takes which job, and when: queue, quotas, sessions, refilling, and the engine around them.

Runs in:   the daemon, and `leeward run`.
"""
