"""A rollout: traffic split between two versions, and the statistical tests that decide."""
