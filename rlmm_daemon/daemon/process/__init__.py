"""The process: its tasks, its talk with systemd, and how late its event loop is."""
