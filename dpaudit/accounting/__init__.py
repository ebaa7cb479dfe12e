"""The mathematics of costs: pure functions on arrays and numbers. No files, no models. All costs are in nats."""

from dpaudit.accounting.approximate import ApproximateAccountant
from dpaudit.accounting.attacks import LowerBound, epsilon_lower_bound
from dpaudit.accounting.centers import CentersMethod, ChangScales, DpmScales, centers_epsilon
from dpaudit.accounting.composition import (
    Composition,
    Method,
    exponential_mechanism_epsilon,
    rounded_sum,
    zcdp_epsilon,
)
from dpaudit.accounting.ex_post import Cost, ExPostAccountant, exact_cost, theorem1_cost
from dpaudit.accounting.rebalancing import (
    batches_by_counts,
    kept_by_counts,
    noise_covers,
    noise_tail,
    rebalancing_epsilon,
    rebalancing_events,
    rebalancing_scale,
)
from dpaudit.mechanisms import median_bounds
