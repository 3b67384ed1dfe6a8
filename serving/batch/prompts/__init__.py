"""Batches of prompts: how they are read and refused, and the engines that answer them."""
