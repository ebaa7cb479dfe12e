"""The places of work: this process, the cores of this machine, or elsewhere.

Results come in the tasks' order.
"""

from dpaudit.lazy import lazy_names

__getattr__, __all__ = lazy_names(__name__, __file__)
