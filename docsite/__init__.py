"""The site's additions to docs/: links, the catalogue of checks, fields. Not in the package."""
