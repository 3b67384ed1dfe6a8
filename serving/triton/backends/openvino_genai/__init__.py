"""The backend of `backend: "openvino_genai"`: text from a causal language model."""

SHARED_MODULES = ("millrace.models.common.language_generation",)
