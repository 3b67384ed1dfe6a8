"""The backend that answers to `backend: "openvino_genai"`: text from a causal language model."""

SHARED_MODULES = ("millrace.models.common.language_generation",)
