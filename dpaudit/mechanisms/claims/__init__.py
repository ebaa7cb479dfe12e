"""Kinds of claims: their statements, their tests, and their consequences."""

from dpaudit.mechanisms.claims.approximate import ApproximateClaim as ApproximateClaim
from dpaudit.mechanisms.claims.ex_post import ExPostClaim as ExPostClaim
from dpaudit.mechanisms.claims.kind import ClaimKind as ClaimKind
from dpaudit.mechanisms.claims.kind import Guarantee as Guarantee
from dpaudit.mechanisms.claims.kind import Kind as Kind
from dpaudit.mechanisms.claims.kind import KindOfClaim as KindOfClaim
from dpaudit.mechanisms.claims.registry import CLAIM_KINDS as CLAIM_KINDS
from dpaudit.mechanisms.claims.registry import EMPIRICAL as EMPIRICAL
from dpaudit.mechanisms.claims.registry import KIND_MEANINGS as KIND_MEANINGS
from dpaudit.mechanisms.claims.registry import KIND_TITLES as KIND_TITLES
from dpaudit.mechanisms.claims.zcdp import ZcdpClaim as ZcdpClaim
