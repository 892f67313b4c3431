"""`python -m tests.simulation` is `python -m tests.simulation.run`."""

import sys

from tests.simulation.run import main

if __name__ == "__main__":
    sys.exit(main())
