"""The mathematics of costs: pure functions on arrays and numbers.

There are no files and no models. All costs are in nats.
"""

from dpaudit.accounting.allocation import allocated_cost as allocated_cost
from dpaudit.accounting.allocation import release_cost as release_cost
from dpaudit.accounting.approximate import ApproximateAccountant as ApproximateAccountant
from dpaudit.accounting.approximate import Limit as Limit
from dpaudit.accounting.attacks import LowerBound as LowerBound
from dpaudit.accounting.attacks import epsilon_lower_bound as epsilon_lower_bound
from dpaudit.accounting.centers import CentersMethod as CentersMethod
from dpaudit.accounting.centers import ChangScales as ChangScales
from dpaudit.accounting.centers import DpmScales as DpmScales
from dpaudit.accounting.centers import centers_epsilon as centers_epsilon
from dpaudit.accounting.clusterings import CLUSTERINGS as CLUSTERINGS
from dpaudit.accounting.clusterings import CentersAsked as CentersAsked
from dpaudit.accounting.composition import Composition as Composition
from dpaudit.accounting.composition import Method as Method
from dpaudit.accounting.composition import (
    exponential_mechanism_epsilon as exponential_mechanism_epsilon,
)
from dpaudit.accounting.ex_post import Cost as Cost
from dpaudit.accounting.ex_post import ExPostAccountant as ExPostAccountant
from dpaudit.accounting.ex_post import exact_cost as exact_cost
from dpaudit.accounting.ex_post import theorem1_cost as theorem1_cost
from dpaudit.accounting.joint import Parts as Parts
from dpaudit.accounting.joint import joint_attacks as joint_attacks
from dpaudit.accounting.joint import joint_epsilon as joint_epsilon
from dpaudit.accounting.rebalancing import batches_by_counts as batches_by_counts
from dpaudit.accounting.rebalancing import kept_by_counts as kept_by_counts
from dpaudit.accounting.rebalancing import noise_covers as noise_covers
from dpaudit.accounting.rebalancing import noise_reach as noise_reach
from dpaudit.accounting.rebalancing import noise_tail as noise_tail
from dpaudit.accounting.rebalancing import rebalancing_epsilon as rebalancing_epsilon
from dpaudit.accounting.rebalancing import rebalancing_events as rebalancing_events
from dpaudit.accounting.rebalancing import rebalancing_scale as rebalancing_scale
from dpaudit.accounting.release import Plan as Plan
from dpaudit.accounting.release import ReleaseAccountant as ReleaseAccountant
from dpaudit.accounting.release import cost_of_texts as cost_of_texts
from dpaudit.accounting.release import delta_share as delta_share
from dpaudit.accounting.release import limit_of as limit_of
from dpaudit.accounting.release import most_texts as most_texts
from dpaudit.accounting.release import of_one_key as of_one_key
from dpaudit.accounting.renyi import RenyiTable as RenyiTable
from dpaudit.accounting.renyi import rounded_sum as rounded_sum
from dpaudit.accounting.renyi import zcdp_epsilon as zcdp_epsilon
from dpaudit.accounting.risk import AttackCurve as AttackCurve
from dpaudit.accounting.risk import AttackLimit as AttackLimit
from dpaudit.mechanisms import median_bounds as median_bounds
from dpaudit.runs.secrecy import SecretBatches as SecretBatches
