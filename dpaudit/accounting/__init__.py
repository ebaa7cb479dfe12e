"""The mathematics of costs: pure functions on arrays and numbers.

There are no files and no models. All costs are in nats.
"""

from dpaudit.lazy import lazy_names

__getattr__, __all__ = lazy_names(__name__, __file__)
