"""Placeholder."""
def install(patches, ctx): pass
