"""
The way from a trusted process to a confined one: zygote, keeper, runner.

Runs in:   processes of its own, started by exec; never imported by the daemon.
           What is imported here lies in memory that a job can read.
"""
