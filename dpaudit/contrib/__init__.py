"""Mechanisms, checks and recorders for the work of others. They come in as any plug-in does, by entry points."""
