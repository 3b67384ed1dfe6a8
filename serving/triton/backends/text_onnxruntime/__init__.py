"""The backend of `backend: "text_onnxruntime"`: text in, class scores or labels out."""
