"""Sources of rows: files, tables and Python functions."""
