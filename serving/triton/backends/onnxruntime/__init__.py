"""The backend that answers to `backend: "onnxruntime"` where NVIDIA's C++ one is not installed."""
