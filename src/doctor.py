"""`python -m src.doctor`: `harbortrainer doctor`."""

import sys

from src.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["doctor", *sys.argv[1:]]))
