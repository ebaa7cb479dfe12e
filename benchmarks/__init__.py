"""What dpaudit costs, measured: `python -m benchmarks` prints every ratio with machine, versions and date."""
