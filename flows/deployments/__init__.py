"""The scheduled deployments: what they are, when they run, and what they missed."""
