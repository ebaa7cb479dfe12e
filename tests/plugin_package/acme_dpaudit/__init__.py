"""A plug-in for dpaudit: an aggregator and a check."""
