"""Makes the pages of the documentation's site that are not written by hand. Not part of the installed package."""
