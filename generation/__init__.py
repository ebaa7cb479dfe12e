"""Algorithm 1: prompts, models, batching, aggregation and decoding.

It writes run directories.
"""

import os

# Before MKL's first use: the same sums in the same order in every row and thread, wherever its
# numbers lie in memory. Without it a context's logits would depend, in their last bits, on which
# rows the other contexts sit in.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
