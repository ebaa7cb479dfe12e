"""Tables of runs: their content, their cost, running row after row, and printing."""
