"""`python -m src.doctor …` is `harbortrainer doctor …`."""

import sys

from harbortrainer.cli.start import main

if __name__ == "__main__":
    sys.exit(main(["doctor", *sys.argv[1:]]))
