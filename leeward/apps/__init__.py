"""
Programs on top of the client.

Runs in:   processes of a user's own, none of which can reach what serves or runs jobs.
"""
