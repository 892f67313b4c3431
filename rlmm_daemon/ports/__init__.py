"""The seams: what the daemon needs from the world outside, as protocols with promises.

Each port has one contract test class that every adapter of it passes. `threads` is no port: it is
how both sides of the storage's read a source.
"""
