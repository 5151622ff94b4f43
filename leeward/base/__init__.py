"""
What every process imports, and what imports nothing of leeward's.

Runs in:   anywhere; pure.
"""
