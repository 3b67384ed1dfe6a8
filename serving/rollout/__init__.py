"""A rollout: traffic shared between two versions, and the tests that decide."""
