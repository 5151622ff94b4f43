"""The daemon, put together: configuration, engine, server, signals, the service manager; on the reactor's thread."""
