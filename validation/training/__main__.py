"""``python -m validation.training``."""

import sys

from validation.training.accuracy import main

if __name__ == "__main__":
    sys.exit(main())
