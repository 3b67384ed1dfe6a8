"""While `up` runs, counts what the guard records, and serves it as metrics for Prometheus."""

import threading

from millrace.flows.console import WarnOnce, first_line
from millrace.flows.triggers.watch import PollingThread
from millrace.models.common.installation import Installation
from millrace.serving.guard.arrivals_log import log_path
from millrace.serving.guard.arrivals_tail import ArrivalsTail
from millrace.serving.guard.socket_page import serving_page
from millrace.serving.guard.sockets import clients_socket
from millrace.serving.replicas.files import servers_of
from millrace.serving.triton.client_metrics import ClientMetrics

COUNT_SECONDS = 2.0


class ClientMetricsPublisher(PollingThread):
    """A thread that counts every two seconds; what fails is tried again the next time.

    Args:
        installation: has the record, and the terms of the models.
        pause: seconds between two times.
    """

    def __init__(self, installation: Installation, pause: float = COUNT_SECONDS) -> None:
        # Prefect, which comes with it, must not be imported before this process has its log.
        from millrace.tasks.live_terms import LiveTerms

        super().__init__("client metrics", pause)
        (endpoint, *_), self._pause = servers_of(installation), pause
        self._socket = installation.home / clients_socket(endpoint)
        self._tail = ArrivalsTail(installation.home / log_path(endpoint))
        self._terms = LiveTerms(installation)
        self._metrics, self._lock = ClientMetrics(), threading.Lock()
        self._warning = WarnOnce("the metrics of clients cannot be made; retrying: %s")

    def run(self) -> None:
        """Count and serve until `stop`."""
        try:
            with serving_page(self._socket, self._page):
                super().run()
        except OSError as error:
            self._warning.report(first_line(error))

    def check(self) -> float:
        """Count what is new; return seconds until the next time."""
        try:
            terms = self._terms.by_model()
            lines = self._tail.read()
            with self._lock:
                self._metrics.add(lines, terms)
        except Exception as error:  # a full disk must not end the thread
            self._warning.report(first_line(error))
        else:
            self._warning.report("")
        return self._pause

    def _page(self) -> bytes:
        with self._lock:
            return self._metrics.page()
