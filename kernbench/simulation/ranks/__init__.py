"""Who runs: hosts and the SIPs that they drive, where in its program each of them is, and who stands in for whom."""
