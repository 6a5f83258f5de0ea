"""The operators of vLLM's compiled libraries, as release 0.33 defines them.

Values are there for what decoding a Llama needs, costs by bytes or by live lengths. All others have a shape, and no values."""
