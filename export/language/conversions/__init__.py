"""Programs that make one variant of a language model out of another, with its engine's tools alone.

Each runs in a process of its own and can be run again by hand, from a copy of this folder:
`python -m conversions.compress_weights openvino-fp32 openvino-int8 --mode int8_asym`.
"""
