"""Listeners: what the rooms report, made visible. Nobody below imports this room.

Comes in: loaders, their stats, and records of their runs. Goes out: a progress bar, numbers for a dashboard, what a run
costs, and a page about it. Nothing here changes what is delivered.
"""

from __future__ import annotations

from sds.observe.bar import ProgressBar, progress
from sds.observe.costs import Cost, cost
from sds.observe.estimates import Estimate, estimate
from sds.observe.metrics import Endpoint, prometheus, serve
from sds.observe.numbers import flat, log
from sds.observe.page import report
from sds.observe.prices import PRICES, Price, read_prices
from sds.observe.runs import Run, read_run

__all__ = [
    "ProgressBar",
    "progress",
    "flat",
    "log",
    "prometheus",
    "serve",
    "Endpoint",
    "cost",
    "Cost",
    "estimate",
    "Estimate",
    "PRICES",
    "Price",
    "read_prices",
    "report",
    "read_run",
    "Run",
]
