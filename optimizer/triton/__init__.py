"""The one place that talks to Triton and knows its messages. Heavy imports (grpc, tritonclient) happen on first use."""
