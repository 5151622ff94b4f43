"""
Live sandboxes: a runner that stays, and the processes in it.

Runs in: the daemon, on the reactor's thread.
"""
