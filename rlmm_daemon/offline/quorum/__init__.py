"""A quorum's log without its daemon: checks of a replica, and voters that are forced."""
