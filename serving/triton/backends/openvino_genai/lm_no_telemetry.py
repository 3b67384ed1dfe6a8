"""Imported before OpenVINO: without this package of its own it sends nothing to its makers."""

import sys

sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
