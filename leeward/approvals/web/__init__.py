"""
The page, REST and WebSocket of approvals: one app for browsers, programs and agents.

Runs in:   the operator's program that decides, on its event loop; needs the extra `web`.
Trust:     none in a request's bytes and in what the queue shows: both are hostile. Whoever comes by a socket of the
           program's is told by the credential that it gives; whoever comes by TCP has to show a session or a token.
"""
