"""The guard: an Envoy on the public HTTP ports, which passes only checked requests to Triton."""
