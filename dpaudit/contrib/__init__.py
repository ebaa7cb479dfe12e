"""Mechanisms, checks and recorders for the work of others.

They come in like any plug-in, by entry points.
"""
