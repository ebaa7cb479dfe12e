"""What leaves the house: policies that runs are held to, release folders, their attestations, and who signs them."""
