"""What a batch job says of itself: progress, throughput, drift, agreement."""
