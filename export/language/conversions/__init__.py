"""Programs that convert one variant of a language model into another.

They use only the tools of the variant's engine, and do not import Millrace. Each runs in a process
of its own, and can be run by hand from a copy of this folder:
`python -m conversions.compress_weights openvino-fp32 openvino-int8 --mode int8_asym`.
"""
