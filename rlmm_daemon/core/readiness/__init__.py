"""States of a metadata partition: what each allows, and which step leads from one to the next.

Also whether a bucket's marker is ours, and whether another daemon bears our broker id.
"""
