"""The backend that splits one model's requests between two of its versions."""
