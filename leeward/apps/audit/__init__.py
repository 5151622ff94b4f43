"""
The record of decisions: lines of JSON, each with the hash of the line before.

Runs in:   the program that decides, which writes it, and the CLI, which shows and verifies it.
Leaves:    a program that can write to the files can forge a consistent record. A head that is kept in another folder or
           on another host reveals that.
"""
