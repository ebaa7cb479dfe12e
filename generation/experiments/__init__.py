"""Tables of runs: their content, cost, running of rows one after the other, and printing."""
