"""The Unix socket: connections, frames, who may ask what, and the limits that all share.

It answers with what the services of `base` hand it; it refuses to know what a segment is.
"""
