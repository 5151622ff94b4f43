"""
The daemon, put together: configuration, engine, server, signals, the service manager.

Runs in: the daemon, on the reactor's thread.
"""
