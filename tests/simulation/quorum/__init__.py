"""A quorum of replicas on one heap of events: disks that lose, a network that lies, operators."""
