"""
The page, REST and WebSocket of approvals: one app for browsers, programs and agents.

Runs in:   the operator's program that decides, on its event loop; needs the extra `web`.
Trust:     none in a request's bytes and in the queue's texts. The operator's socket and the bridges give each caller a
           credential; a caller over TCP has to show a session or a token.
"""
