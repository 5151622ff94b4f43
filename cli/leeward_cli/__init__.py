"""
The `leeward` command.
"""
