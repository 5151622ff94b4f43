"""
The layers, one a file: what this kernel offers, the plan, and the system calls that enforce it.

Runs in:   the daemon, which decides (`probe`, `plan`, `prepare`), and the crossing, which takes the steps.
"""
