"""Copies of a log: the fence around its source, and the comparison at its end."""
