"""Programs that convert one variant of a model into another.

They do not import Millrace; most need only onnx and onnxruntime. Each runs in a process of its own,
and can be run by hand from a copy of this folder:
`python -m conversions.int8_static fp32.onnx int8.onnx --calibration rows.npz`.
"""
