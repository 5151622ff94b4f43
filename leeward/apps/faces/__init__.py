"""
Faces: a sandbox as another protocol shows it.

Runs in:   the user's program, outside of the trust boundary, with that user's own rights.
Trust:     none in what asks for calls, nor in what a sandbox returns. A face translates: it keeps no state but what it
           has opened, and can't do what its user can't do by the client. Only the command line imports it.
"""
