"""Keeps OpenVINO's tools from sending usage data."""

import sys


def send_nothing() -> None:
    """Let OpenVINO's and nncf's tools find no telemetry package, before they are imported.

    They send on import and on every conversion, unless the user has declined in a file of theirs;
    without the package they go on in silence.
    """
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
