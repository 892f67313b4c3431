"""The `rlmm` command: one module per noun, loaded when it is asked for.

Exit codes: 0 clean, 1 found trouble, 2 usage, 3 daemon unreachable, 78 bad configuration.
"""

from rlmm_daemon.cli.group import main

__all__ = ["main"]
