"""Tables of runs: what a table is, what it costs, how its rows are run one after the other, and how it is printed."""
