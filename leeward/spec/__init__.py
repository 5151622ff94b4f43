"""
Data that describes jobs and sandboxes: limits, view, profile, job.

Runs in:   anywhere; pure. `isolation` turns a sandbox's description into system calls.
"""
