"""The running daemon: who is followed, what is applied, who waits for it, and the socket in front.

Everything here reaches the world through `ports`, so that the deterministic simulation runs it
unmodified. Tasks are started by `runtime`, and by the one group of each room that owns children.
"""
