"""Reports of a run of the nightly job, for people and machines."""
