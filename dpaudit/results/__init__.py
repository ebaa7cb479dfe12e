"""Types of results: of audits, comparisons, evaluations and replays. Reports render them."""

from dpaudit.lazy import lazy_names

__getattr__, __all__ = lazy_names(__name__, __file__)
