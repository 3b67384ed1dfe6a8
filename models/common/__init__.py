"""What every package may use: errors, files, processes, hardware and Ray."""
