"""Clustering of similar records before they are batched, and its cost (paper, section 4.1)."""
