"""Conversions that go wrong in every way."""
