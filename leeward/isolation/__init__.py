"""
The layers: the features that this kernel offers, the plan, and the system calls that enforce the plan.

Runs in:   the daemon, which decides (`probe`, `plan`, `prepare`), and the crossing, which takes the steps.
"""
