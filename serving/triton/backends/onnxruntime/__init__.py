"""The backend of `backend: "onnxruntime"` if NVIDIA's C++ backend is not installed."""
