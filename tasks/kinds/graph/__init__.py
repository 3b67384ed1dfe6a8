"""The kind `graph`: models that are one ONNX file and return one tensor for rows."""
