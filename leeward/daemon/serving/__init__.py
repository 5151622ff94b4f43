"""
Clients: the socket, connections, their requests, sessions and answers.

Runs in:   the daemon, on the reactor's thread.
Trust:     every byte of a client is hostile.
"""
