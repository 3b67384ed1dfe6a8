"""The backend that answers to `backend: "openvino_genai"`: text from a causal language model."""
