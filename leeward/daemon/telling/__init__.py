"""
What the daemon tells about itself: log, security log, metrics and status.

Runs in:   the daemon, on the reactor's thread.
"""
