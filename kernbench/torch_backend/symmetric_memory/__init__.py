"""Symmetric memory: buffers and signal pads that every member of a group addresses."""
