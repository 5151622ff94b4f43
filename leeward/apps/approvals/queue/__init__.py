"""
The queue of approvals: requests in normal form, the rules and the person that decide them, and the file that keeps both.

Runs in:   the operator's program that decides, in any of its threads.
Trust:     none in a request.
"""
