"""Commands of a quorum of daemons: they work beside a running replica, or on its directory."""
