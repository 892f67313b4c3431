"""What operators see of a running daemon: its log lines and its metrics.

Nothing here decides anything. Foreign strings are escaped and secrets hidden on the way out.
"""
