"""The test command of a mutant: asks the trials' process by its socket; exit code 0 if it lives."""

import socket
import sys

with socket.socket(socket.AF_UNIX) as trials:
    trials.connect(sys.argv[1])
    sys.exit(trials.recv(1) != b"\0")
