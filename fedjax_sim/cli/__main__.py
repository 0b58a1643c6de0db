"""Entry of ``python -m fedjax_sim.cli``: the command line without its script."""

import sys

from fedjax_sim.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
