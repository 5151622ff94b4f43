"""
Live sandboxes as other people's frameworks want them: one file each, which alone imports its framework.

Runs in:   anybody's program.
"""
