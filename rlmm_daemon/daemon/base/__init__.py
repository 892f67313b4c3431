"""Waits, bounds, errors, and the services' protocols: what every room of the daemon stands on.

Nothing here knows a room above it.
"""
