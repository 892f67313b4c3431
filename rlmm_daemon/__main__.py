"""`python -m rlmm_daemon` is `rlmm`."""

from rlmm_daemon.cli import main

main(prog_name="rlmm")
