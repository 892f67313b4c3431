"""Copies and deletes of whole segments, in the log's order, and their roll-backs.

It refuses to know how bytes are stored (`ports.storage`) and who asked.
"""
