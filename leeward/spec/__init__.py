"""
What a sandbox sees and may do, as data: limits, view, profile, job.

Runs in:   anywhere; pure.
How it gets there is the business of `isolation`.
"""
