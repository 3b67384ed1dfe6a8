"""What every package may use: errors, files, processes and hardware."""
