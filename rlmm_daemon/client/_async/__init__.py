"""Awaiting half of the client, written by hand; `make client` makes the blocking half of it.

`wire` and `exchange` touch the event loop, so their twins in `_sync` are written by hand too. The
others know of it nothing but `await`.
"""
