def memory_bound_time(*a,**k): raise NotImplementedError
def traffic_of(*a): return 0
