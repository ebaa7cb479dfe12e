"""Run directories in, results out: audits, comparisons, inspections, and their public forms."""
