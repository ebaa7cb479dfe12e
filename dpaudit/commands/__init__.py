"""The commands of `dpaudit`, a module each.

Heavy packages are imported inside the command that needs them.
"""
