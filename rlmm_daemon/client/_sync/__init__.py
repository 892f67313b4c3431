"""Blocking half of the client: made of `_async` by `make client`, but for `wire` and `exchange`.

A test is red when it is stale.
"""
