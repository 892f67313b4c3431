"""The decisions: what the metadata is after each event, what may be asked, what may be deleted.

Pure: no IO, no clock, no luck, no logging. The shells in `daemon` feed it and carry out what it
says. `fold` is the state that one metadata partition's log implies (KIP-405); everything else here
is a rule that reads it or a rule that it obeys.
"""
