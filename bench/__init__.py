"""The ratios that Millrace holds itself to, measured: `python -m bench`."""
