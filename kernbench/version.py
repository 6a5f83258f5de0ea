"""The version of kernbench, for every room: the front door is above them."""

__version__ = "0.2.0"
