"""What torch and Python keep once per process, kept once per rank."""
