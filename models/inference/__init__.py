"""Inputs and answers of a served model, without the code that trained it."""
