"""Inputs of the nightly job: listings of the storage, and the log, in slices for Spark."""
