"""
The sandboxes that can ask, each with a bridge to the service, and the rows of the record about them.

Runs in:   the operator's program that decides, in threads of its own.
Trust:     none in what comes from a sandbox.
"""
