"""Listeners: what the rooms report, made visible. Nobody below imports this room.

Comes in: loaders and their stats. Goes out: a progress bar. Nothing here changes what is delivered.
"""

from __future__ import annotations

from sds.observe.progress import ProgressBar

__all__ = ["ProgressBar"]
