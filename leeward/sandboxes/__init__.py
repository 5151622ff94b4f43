"""Live sandboxes: a runner that stays, and the processes in it; in the daemon, on the reactor's thread."""
