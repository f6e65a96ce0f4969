"""`python -m src.tasks …` is `harbortrainer tasks …`."""

import sys

from harbortrainer.cli.start import main

if __name__ == "__main__":
    sys.exit(main(["tasks", *sys.argv[1:]]))
