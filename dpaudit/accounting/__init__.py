"""The mathematics: pure functions on arrays and numbers. No files, no models. All costs are in nats."""

from dpaudit.accounting.attacks import LowerBound, epsilon_lower_bound
from dpaudit.accounting.centers import CentersMethod, ChangScales, DpmScales, centers_epsilon
from dpaudit.accounting.columns import Moving, Still, log_sum_exp, moving_columns
from dpaudit.accounting.composition import (
    Composition,
    Method,
    exponential_mechanism_epsilon,
    zcdp_epsilon,
)
from dpaudit.accounting.ex_post import (
    Cost,
    ExPostAccountant,
    MeanAccountant,
    MedianAccountant,
    ex_post_accountant,
    exact_cost,
    mean_box,
    theorem1_cost,
)
from dpaudit.accounting.leave_one_out import log_probability, mean_losses, median_losses
from dpaudit.accounting.ledger import rounded_sum
from dpaudit.accounting.mean import (
    DivisorKind,
    MeanSensitivity,
    affordable_tokens,
    bounded_range,
    mean_epsilon,
    mean_epsilons,
    mean_sensitivity,
    zcdp_rho,
)
from dpaudit.accounting.medians import (
    bounds_from_central,
    central_order_statistics,
    median_bounds,
    median_of,
    median_sides,
    movable,
)
from dpaudit.accounting.neighbors import ContextChange, context_change
from dpaudit.accounting.rebalancing import (
    batches_by_counts,
    kept_by_counts,
    noise_covers,
    noise_tail,
    rebalancing_epsilon,
    rebalancing_events,
    rebalancing_scale,
)

__all__ = [
    "CentersMethod",
    "ChangScales",
    "Composition",
    "ContextChange",
    "Cost",
    "DivisorKind",
    "DpmScales",
    "ExPostAccountant",
    "LowerBound",
    "MeanAccountant",
    "MeanSensitivity",
    "MedianAccountant",
    "Method",
    "Moving",
    "Still",
    "affordable_tokens",
    "batches_by_counts",
    "bounded_range",
    "bounds_from_central",
    "centers_epsilon",
    "central_order_statistics",
    "context_change",
    "epsilon_lower_bound",
    "ex_post_accountant",
    "exact_cost",
    "exponential_mechanism_epsilon",
    "kept_by_counts",
    "log_probability",
    "log_sum_exp",
    "mean_box",
    "mean_epsilon",
    "mean_epsilons",
    "mean_losses",
    "mean_sensitivity",
    "median_bounds",
    "median_losses",
    "median_of",
    "median_sides",
    "movable",
    "moving_columns",
    "noise_covers",
    "noise_tail",
    "rebalancing_epsilon",
    "rebalancing_events",
    "rebalancing_scale",
    "rounded_sum",
    "theorem1_cost",
    "zcdp_epsilon",
    "zcdp_rho",
]
