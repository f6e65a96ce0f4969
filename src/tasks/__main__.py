"""`python -m src.tasks`: `harbortrainer tasks`."""

import sys

from src.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["tasks", *sys.argv[1:]]))
