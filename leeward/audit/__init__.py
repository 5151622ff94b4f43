"""
The record of what was decided: lines of JSON, each with the hash of the one before.

Runs in:   the program that decides, which writes, and the CLI, which shows and verifies.
Leaves:    whoever may write the files can make a record that fits in itself. The head, kept in another folder or on
           another host, tells.
"""
