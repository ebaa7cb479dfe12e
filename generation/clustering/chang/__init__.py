"""Cluster centres from a locality-sensitive tree with noisy counts (Chang and Kamath, 2021)."""

from dpaudit.generation.clustering.chang.method import Chang

__all__ = ["Chang"]
