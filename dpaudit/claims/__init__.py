"""Kinds of claims: their statements, their tests, and their consequences."""

from dpaudit.claims.approximate import ApproximateClaim as ApproximateClaim
from dpaudit.claims.ex_post import ExPostClaim as ExPostClaim
from dpaudit.claims.kind import ClaimKind as ClaimKind
from dpaudit.claims.kind import Guarantee as Guarantee
from dpaudit.claims.kind import Kind as Kind
from dpaudit.claims.kind import KindOfClaim as KindOfClaim
from dpaudit.claims.registry import CLAIM_KINDS as CLAIM_KINDS
from dpaudit.claims.registry import EMPIRICAL as EMPIRICAL
from dpaudit.claims.registry import KIND_MEANINGS as KIND_MEANINGS
from dpaudit.claims.registry import KIND_TITLES as KIND_TITLES
from dpaudit.claims.zcdp import ZcdpClaim as ZcdpClaim
