"""The backend of `backend: "text_onnxruntime"`: text in, scores of the classes out."""
