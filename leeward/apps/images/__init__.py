"""
Images: root file systems in layers, unpacked from archives, folders and registries into a folder of the user's.

Runs in:   the CLI, as the user whose daemon is to use them.
Trust:     none in an image's bytes. `streams` bounds and hashes them, `sources` finds its layers, `unpacking` writes
           them below a folder and nowhere else, and `store` gives them their names when all of it was checked.
"""
