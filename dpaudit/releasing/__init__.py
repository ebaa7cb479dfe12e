"""Releases: policies for runs, release folders, their attestations, and signatures."""
