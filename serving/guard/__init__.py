"""The guard: an Envoy proxy on the public ports that passes only valid requests to Triton."""
