"""Work on the files of a stopped daemon, or beside a running one: checks, copies, restores.

Each command of `cli` that works without asking a daemon has its work here; nothing here prints.
"""
