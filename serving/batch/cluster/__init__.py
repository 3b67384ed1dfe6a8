"""Batch jobs on a cluster: submitted to Ray, followed, and spread over its nodes."""
