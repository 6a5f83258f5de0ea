"""From TTIR to the flat program that the machine runs."""
