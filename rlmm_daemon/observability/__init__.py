"""Log lines and metrics of a running daemon.

Nothing here decides anything. Foreign strings are escaped and secrets hidden on the way out.
"""
