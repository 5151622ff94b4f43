"""
The daemon's reports about itself: log, security log, metrics and status.

Runs in: the daemon, on the reactor's thread.
"""
