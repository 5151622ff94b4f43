"""
Approvals: rules and a person decide what may leave a sandbox; what is approved is carried out on the host.

Runs in:   a program of the operator's, on the host, with that user's own rights; no process of a sandbox or of the
           daemon imports it. Only `agent` is copied into sandboxes, and sends requests.
Trust:     none in a request: its description, paths, names and content come from a sandbox. No function on the
           sandbox's side decides.
"""

from __future__ import annotations

from leeward.apps.approvals.requester import Agent, AskError, ServiceGone

__all__ = ["Agent", "AskError", "ServiceGone"]
