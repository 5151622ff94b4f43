"""
The daemon without a kernel: reactor, server, sessions, pool and workers as they are, on a simulated host.

Everything that decides is the product's own. Simulated are time, descriptors (kernel.py), the shim's loop (loop.py),
the processes of a worker (processes.py) and clients (clients.py). world.py puts them together and says what must
hold; a run is a list of operations (operations.py) and the dice that say how quick everything is and what
fails. So a seed is a history, told in milliseconds, and the same each time.

    PYTHONPATH=tests python -m simulation 5000       # that many seeds
    PYTHONPATH=tests python -m simulation --seed 7   # one, with its trace
"""
