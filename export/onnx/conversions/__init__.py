"""Programs that make one variant of a model out of another, with onnx and onnxruntime alone.

Each runs in a process of its own and can be run again by hand, from a copy of this folder:
`python -m conversions.int8_static fp32.onnx int8.onnx --calibration rows.npz`.
"""
