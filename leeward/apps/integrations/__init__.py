"""
Adapters that give live sandboxes to other frameworks: one file for each, and only that file imports the framework.

Runs in:   anybody's program.
"""
