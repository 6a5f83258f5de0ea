"""Data that benches come with."""
