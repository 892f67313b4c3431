"""Decisions of the nightly job: suspects, verdicts, and whether it may condemn at all."""
