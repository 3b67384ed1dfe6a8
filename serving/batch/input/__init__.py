"""The input of a batch job: found, cut into pieces, read and encoded."""
