"""`python -m sds` is the command `sds`."""

from __future__ import annotations

from sds.cli import main

if __name__ == "__main__":
    main()
