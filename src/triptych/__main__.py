"""``python -m triptych`` is ``triptych``."""

import sys

from triptych.cli import main

if __name__ == "__main__":
    sys.exit(main())
