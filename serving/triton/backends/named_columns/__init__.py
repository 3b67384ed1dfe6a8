"""The backend of `backend: "named_columns"`: columns by their names in, the model's answer out."""

SHARED_MODULES = ("millrace.serving.triton.backends.onnxruntime.input_rules",)
