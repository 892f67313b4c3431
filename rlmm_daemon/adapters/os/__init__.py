"""Clocks, files, threads for blocking calls, and scheduling, as the operating system gives them."""
