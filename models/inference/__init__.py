"""Inputs and answers of a served model; needs no training code."""
