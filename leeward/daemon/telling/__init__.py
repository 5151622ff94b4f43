"""The daemon's reports about itself: log, security log, metrics and status."""
