"""The measured cost of dpaudit: `python -m benchmarks` prints ratios, machine and versions."""
