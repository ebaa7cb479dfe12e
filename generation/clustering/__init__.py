"""Groups records that are alike before they are batched, and says what that costs (paper, section 4.1)."""
