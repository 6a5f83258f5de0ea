"""SGLang's kernels: those of its compiled libraries (``sglang-kernel``), and those that it compiles while it runs.

Values are there for what decoding a Llama and routing experts need, costs by bytes or by live lengths."""
