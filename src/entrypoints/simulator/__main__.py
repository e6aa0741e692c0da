"""`python -m entrypoints.simulator`."""

import sys

from entrypoints.simulator.command import main

if __name__ == "__main__":
    sys.exit(main())
