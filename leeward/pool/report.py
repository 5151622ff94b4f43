"""
The pool's answers, under the pool's own name; they are defined where they are made.
"""

from leeward.worker.report import Arena, Region, Report

__all__ = ["Arena", "Region", "Report"]
