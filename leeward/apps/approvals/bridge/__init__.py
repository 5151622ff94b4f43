"""
The sandboxes that can ask, each with a bridge to the service, and requests for what they push.

Runs in:   the operator's program that decides, in threads of its own.
Trust:     none in what comes from a sandbox.
"""
