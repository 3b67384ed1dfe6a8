"""Several Tritons of one home behind one guard: which run, and which of them get requests."""
