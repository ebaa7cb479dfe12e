"""The mathematics: pure functions on arrays and numbers. No files, no models. All costs are in nats."""

from dpaudit.accounting.ex_post import ExPostAccountant, theorem1_cost
from dpaudit.accounting.mean import affordable_tokens, bounded_range, mean_epsilon, zcdp_epsilon, zcdp_rho
from dpaudit.accounting.medians import (
    bounds_from_central,
    central_order_statistics,
    median_bounds,
    median_of,
    median_sides,
)
from dpaudit.accounting.neighbors import ContextChange, context_changes

__all__ = [
    "ContextChange",
    "ExPostAccountant",
    "affordable_tokens",
    "bounded_range",
    "bounds_from_central",
    "central_order_statistics",
    "context_changes",
    "mean_epsilon",
    "median_bounds",
    "median_of",
    "median_sides",
    "theorem1_cost",
    "zcdp_epsilon",
    "zcdp_rho",
]
