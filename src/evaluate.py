"""`python -m src.evaluate`: `harbortrainer evaluate`."""

import sys

from src.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["evaluate", *sys.argv[1:]]))
