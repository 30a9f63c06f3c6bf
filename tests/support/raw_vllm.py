"""How tests and benchmarks ask vLLM without our server."""

RAW_PARAMETERS = {"logprobs": 0, "flat_logprobs": True, "detokenize": False}
"""What our server adds to a request's parameters, and the quicker of vLLM's two containers for log-probabilities."""
