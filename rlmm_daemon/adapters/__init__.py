"""Every port of `rlmm_daemon.ports` made real; only `wiring` names the classes in here."""
