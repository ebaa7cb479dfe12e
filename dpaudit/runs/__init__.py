"""The run directory: one versioned format, one writer, one reader.

It is the only contract between generation and audit.
"""

from dpaudit.lazy import lazy_names

__getattr__, __all__ = lazy_names(__name__, __file__)
