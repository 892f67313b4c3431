"""Steps of the nightly job under its lease: quarantine, deletion, and the looks before each."""
