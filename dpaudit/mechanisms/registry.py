"""Every contribution and every aggregator there is, by the name that configs and run.json have for it."""

from __future__ import annotations

from dpaudit.mechanisms.central import Central
from dpaudit.mechanisms.interfaces import Aggregator, Contribution
from dpaudit.mechanisms.logits import TopClippedLogits
from dpaudit.mechanisms.mean import Mean
from dpaudit.mechanisms.median import Median

CONTRIBUTIONS: dict[str, type[Contribution]] = {kind.name: kind for kind in (TopClippedLogits,)}
AGGREGATORS: dict[str, type[Aggregator]] = {kind.name: kind for kind in (Median, Mean, Central)}
