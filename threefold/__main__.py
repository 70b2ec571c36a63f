"""`python -m threefold`: the command line."""

from __future__ import annotations

from threefold.cli import main

if __name__ == "__main__":
    main()
