"""The documentation site's additions to docs/: links, catalogue of checks, fields.

Not part of the package.
"""
