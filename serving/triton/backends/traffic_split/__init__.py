"""The backend that shares one model's requests between two of its versions."""
