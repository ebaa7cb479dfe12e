"""The Python front door: what `import dpaudit` gives, and what the command line calls."""
