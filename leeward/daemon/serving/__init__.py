"""
Clients: the socket, connections, their requests, sessions and answers.

Runs in: the daemon, on the reactor's one thread.
Trust: none in a client: every byte of it is hostile.
"""
