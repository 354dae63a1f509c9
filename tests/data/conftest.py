"""The processes that tests start."""

from __future__ import annotations

import multiprocessing

# Whichever test starts the fork server: it imports torch once, and each worker is a fork of it.
multiprocessing.set_forkserver_preload(["layerprobe.data.loading"])
