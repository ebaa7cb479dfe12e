"""Privacy accounting and auditing for text made by differentially private LLM inference."""

__version__ = "0.1.0"
