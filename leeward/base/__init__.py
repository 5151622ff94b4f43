"""
What every process may import, and what imports nothing of leeward's.

Runs in:   anywhere; pure, but for whole_files.
"""
