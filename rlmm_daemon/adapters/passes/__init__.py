"""The passes over a segment's bytes: in the caller's thread, or in a process of their own.

A thread that copies shares the interpreter with the event loop. When the kernel takes the processor
away from it in one of the moments in which it holds the interpreter's lock, all look-ups wait until
it runs again, and since it comes behind everybody else that may be long.
"""
