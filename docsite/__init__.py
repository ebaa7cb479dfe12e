"""What the documentation's site has beside docs/: links, the catalogue of checks, fields. Not part of the package."""
