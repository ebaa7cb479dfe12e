"""The version of dpaudit, for whoever stands below the front door."""

__version__ = "0.1.0"
