"""The scheduled deployments: which there are, when they run, and what they missed."""
