"""Serving: releases, rollouts, Triton, its guard, the OpenAI server and batch jobs."""
