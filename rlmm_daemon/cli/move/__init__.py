"""Commands that move a segment, or have a topic's removed."""
