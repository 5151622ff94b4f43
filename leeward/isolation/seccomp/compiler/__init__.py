"""Makes the programs of the package from the seccomp table: plan, compile, shorten, check. Nothing that serves imports it."""
