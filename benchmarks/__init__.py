"""Measured costs of dpaudit: `python -m benchmarks` prints ratios, machine, versions and date."""
