"""`python -m layerprobe`."""

from __future__ import annotations

from layerprobe.cli import main

if __name__ == "__main__":
    main()
