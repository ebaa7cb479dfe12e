"""Groups of records that are alike, before batching, and their cost (paper, section 4.1)."""
