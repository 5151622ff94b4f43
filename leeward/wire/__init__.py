"""
The message formats: frames between clients and the daemon, job and reply pipes, control channels.

Runs in:   anywhere; pure. No sockets and no clock.
"""
