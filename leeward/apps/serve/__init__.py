"""
The door: sandboxes and jobs by HTTP, behind interfaces that other people's clients speak.

Runs in:   `leeward serve`, a process beside the daemon, with the rights of the user who started it; an ordinary client.
Trust:     none in a request's bytes, nor in what a sandbox returns. Each error is of `problems`; a face gives it its form.
Tenants:   are this process's alone: the daemon knows one user. A token is a tenant. What belongs to whom is in the
           sandboxes' metadata, so that a process that starts anew forgets nothing.
"""
