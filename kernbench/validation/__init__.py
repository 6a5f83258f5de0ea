"""How wrong the models are: measured tables and published steps beside what is modelled, and fits to measurements.

No room of the simulator imports it. See ``docs/accuracy.md``.
"""
