"""The timeline of a simulation: exported, summed up, drawn."""

def supported_trace(path): pass
def write_trace(ctx, path): pass
