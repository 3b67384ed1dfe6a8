"""The guard: an Envoy proxy on the public HTTP ports that passes only valid requests to Triton."""
