"""Facts about stored segments that need no storage: keys, calls in flight, joined checksums."""
