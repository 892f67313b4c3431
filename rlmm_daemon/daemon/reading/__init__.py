"""Ranges and indexes of stored segments: from local files, caches, or one shared download.

It refuses to know which segment holds an offset: it is given the segment.
"""
