"""The backend that answers to `backend: "text_onnxruntime"`: text in, labels and scores out."""
