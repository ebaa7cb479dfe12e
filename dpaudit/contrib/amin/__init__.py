"""Private tokens where a noisy test asks for them (Amin et al., arXiv 2407.12108)."""
