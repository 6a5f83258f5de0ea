"""Programs that misbehave: none hangs without a word, and none ends without one."""
