"""Few-shot generation by noisy sums of probabilities (Tang et al., arXiv 2309.11765)."""
