"""
The Model Context Protocol: one live sandbox as the tools of an agent outside.

Runs in:   the user's program, which an agent starts as its child.
Trust:     the agent that starts the server, as much as its user; none in the arguments of calls, which a model writes.
"""
