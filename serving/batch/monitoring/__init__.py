"""The measurements of a batch job: progress, throughput, drift, agreement."""
