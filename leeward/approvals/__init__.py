"""
What a person decides before it leaves a sandbox: rules, the queue of requests, and what is carried out.

Runs in:   a program of the operator's, on the host, with that user's own rights; no process of a sandbox or of the
           daemon imports it. Only `agent` is copied into sandboxes, and sends requests.
Trust:     none in a request: its description, paths, names and content come from a sandbox. Only the operator's side
           has a function that decides.
"""

from __future__ import annotations

from leeward.approvals.agent import Agent, AskError, ServiceGone

__all__ = ["Agent", "AskError", "ServiceGone"]
