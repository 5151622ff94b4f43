"""
Agents: what `leeward agent start` runs, what the agent gets of the host, and what has to be undone afterwards.

Runs in:   the program of a user, on the host, with that user's own rights. The client package opens the sandbox.
Trust:     none in a project: its settings, the names of its files and its links are hostile.
"""
