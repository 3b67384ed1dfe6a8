"""What a Triton and its guard do now: the difference between two looks at their metrics.

The metrics are Prometheus counters and histograms. A counter that is smaller than before belongs to
a server that was started anew, and counts from zero.
"""

import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPException

from millrace.models.common.errors import TransientError
from millrace.models.common.installation import Endpoint
from millrace.serving.guard.replica_names import metrics_path

GUARD_PAGE = "/metrics/guard"
METHODS = {"ModelInfer": "gRPC", "ModelStreamInfer": "gRPC streams"}
"""The methods of gRPC that are shown, and how; the others are those of `millrace` itself."""
HTTP = "HTTP"
READ_SECONDS = 5.0
GRPC_TIME = "envoy_cluster_grpc_upstream_rq_time"
HTTP_TIME = "envoy_http_downstream_rq_time"
SUCCESS, FAILURE = "nv_inference_request_success", "nv_inference_request_failure"
ROWS, BATCHES = "nv_inference_count", "nv_inference_exec_count"
QUEUE_US, COMPUTE_US = "nv_inference_queue_duration_us", "nv_inference_compute_infer_duration_us"
TTFT_US, TPOT_US = "millrace_lm_time_to_first_token_us", "millrace_lm_time_per_output_token_us"
TOKENS = "millrace_lm_output_tokens"
TO_MS = 1e-3

Labels = frozenset[tuple[str, str]]
Samples = Mapping[tuple[str, Labels], float]
"""Values by name and labels."""


@dataclass(frozen=True)
class Look:
    """The metrics of a server at a moment.

    Attributes:
        at: seconds of a clock that only goes forward.
        samples: the values.
    """

    at: float
    samples: Samples


@dataclass(frozen=True)
class ModelLoad:
    """What one version did between two looks; None where nothing was measured.

    Attributes:
        model: its model.
        version: its number.
        requests_per_second: answered requests.
        failed_per_second: failed requests.
        rows_per_batch: mean rows that were computed together.
        queue_ms: mean time of a request in the queue.
        compute_ms: mean time of a request in its batch's computation.
        tokens_per_minute: tokens of answers.
        ttft_p99_ms: p99 time to the first token.
        tpot_p99_ms: p99 time per token after the first.
    """

    model: str
    version: str
    requests_per_second: float
    failed_per_second: float
    rows_per_batch: float | None
    queue_ms: float | None
    compute_ms: float | None
    tokens_per_minute: float | None
    ttft_p99_ms: float | None
    tpot_p99_ms: float | None


@dataclass(frozen=True)
class WayLoad:
    """What clients saw at the guard between two looks, by one way.

    Attributes:
        way: HTTP, gRPC or gRPC streams.
        requests_per_second: answered requests.
        refused_per_second: those with an error.
        p50_ms: median latency; None without requests.
        p99_ms: 99th percentile.
    """

    way: str
    requests_per_second: float
    refused_per_second: float
    p50_ms: float | None
    p99_ms: float | None


def read_metrics(endpoint: Endpoint, *, with_guard: bool = True) -> Samples:
    """Return the metrics of a server, and of its guard if it has one.

    Args:
        endpoint: the server.
        with_guard: whether to read those of the guard too.

    Raises:
        TransientError: the server does not answer, or not with metrics.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    address = f"http://{endpoint.host}:{endpoint.metrics_port}"
    found: dict[tuple[str, Labels], float] = {}
    own = metrics_path(endpoint.replica)
    for page in (own, GUARD_PAGE) if with_guard else (own,):
        try:
            with opener.open(address + page, timeout=READ_SECONDS) as answer:
                found |= parse(answer.read().decode())
        except urllib.error.HTTPError as error:
            if page == own or error.code != 404:
                raise _no_metrics(address + page, error) from error
        except (OSError, HTTPException, ValueError) as error:
            raise _no_metrics(address + page, error) from error
    return found


def _no_metrics(address: str, error: Exception) -> TransientError:
    return TransientError(
        "Triton's metrics cannot be read",
        seen=f"{address}: {error}",
        hint="start the services with: millrace up",
    )


def parse(text: str) -> Samples:
    """Return the values of a page of Prometheus metrics; counters without `_total` at their end.

    The parser adds it to those that do not have it.

    Raises:
        ValueError: the text is not such a page.
    """
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[tuple[str, Labels], float] = {}
    for family in text_string_to_metric_families(text):
        end = "_total" if family.type == "counter" else ""
        for sample in family.samples:
            labels = frozenset(sample.labels.items())
            found[sample.name.removesuffix(end), labels] = float(sample.value)
    return found


@dataclass(frozen=True)
class Change:
    """The difference between two looks.

    Attributes:
        before: the earlier look.
        after: the later one.
    """

    before: Look
    after: Look

    @property
    def seconds(self) -> float:
        """The time between the looks."""
        return self.after.at - self.before.at

    def increase(self, name: str, **labels: str) -> float | None:
        """Return by how much a counter grew, all series with these labels together.

        Return None if there is no such series.
        """
        found = list(self._grown(name, labels))
        return sum(grown for _, grown in found) if found else None

    def quantile(self, name: str, share: float, **labels: str) -> float | None:
        """Return a quantile of a histogram's new values, within its bucket as Prometheus does.

        Return None if there are no new values.
        """
        return quantile_of(self.buckets(name, **labels), share)

    def buckets(self, name: str, **labels: str) -> dict[float, float]:
        """Return how many new values of a histogram are at most each upper bound."""
        found: dict[float, float] = {}
        for own, grown in self._grown(f"{name}_bucket", labels):
            bound = float(dict(own)["le"])
            found[bound] = found.get(bound, 0.0) + grown
        return found

    def versions(self) -> list[tuple[str, str]]:
        """Return the models and versions that are loaded, in order."""
        own = (dict(labels) for name, labels in self.after.samples if name == SUCCESS)
        return sorted({(each["model"], each["version"]) for each in own})

    def _grown(self, name: str, labels: Mapping[str, str]) -> Iterator[tuple[Labels, float]]:
        wanted = frozenset(labels.items())
        for (found, own), value in self.after.samples.items():
            if found == name and wanted <= own:
                before = self.before.samples.get((name, own), 0.0)
                yield own, value - before if value >= before else value


def quantile_of(buckets: Mapping[float, float], share: float) -> float | None:
    """Return a quantile from cumulative counts by upper bound; None if all are zero."""
    bounds = sorted(buckets)
    if not bounds or not buckets[bounds[-1]]:
        return None
    wanted, lower, below = share * buckets[bounds[-1]], 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= wanted:
            if bound == float("inf"):
                return lower
            inside = buckets[bound] - below
            return lower + (bound - lower) * ((wanted - below) / inside if inside else 1.0)
        lower, below = bound, buckets[bound]
    return lower


def model_loads(change: Change) -> list[ModelLoad]:
    """Return what each loaded version did."""
    return [_model_load(change, model, version) for model, version in change.versions()]


def _model_load(change: Change, model: str, version: str) -> ModelLoad:
    def grown(name: str) -> float | None:
        return change.increase(name, model=model, version=version)

    done, tokens = grown(SUCCESS) or 0.0, grown(TOKENS)
    first, each = (
        change.quantile(name, 0.99, model=model, version=version) for name in (TTFT_US, TPOT_US)
    )
    return ModelLoad(
        *(model, version),
        requests_per_second=done / change.seconds,
        failed_per_second=(grown(FAILURE) or 0.0) / change.seconds,
        rows_per_batch=_per(grown(ROWS), grown(BATCHES)),
        queue_ms=_per(grown(QUEUE_US), done, TO_MS),
        compute_ms=_per(grown(COMPUTE_US), done, TO_MS),
        tokens_per_minute=None if tokens is None else 60 * tokens / change.seconds,
        ttft_p99_ms=None if first is None else first * TO_MS,
        tpot_p99_ms=None if each is None else each * TO_MS,
    )


def _per(total: float | None, count: float | None, factor: float = 1.0) -> float | None:
    return factor * total / count if total is not None and count else None


def way_loads(change: Change) -> list[WayLoad]:
    """Return what clients saw at the guard; nothing if there is no guard."""
    ways = [(HTTP, HTTP_TIME, {"envoy_http_conn_manager_prefix": "http"})]
    ways += [
        (way, GRPC_TIME, {"envoy_grpc_bridge_method": method}) for method, way in METHODS.items()
    ]
    found = (_way_load(change, *each) for each in ways)
    return [each for each in found if each is not None]


def _way_load(change: Change, way: str, name: str, labels: Mapping[str, str]) -> WayLoad | None:
    answered, refused = _counts(change, way, labels)
    if answered is None:
        return None
    return WayLoad(
        way,
        answered / change.seconds,
        refused / change.seconds,
        change.quantile(name, 0.5, **labels),
        change.quantile(name, 0.99, **labels),
    )


def _counts(change: Change, way: str, labels: Mapping[str, str]) -> tuple[float | None, float]:
    """Return how many requests were answered, and how many of them with an error.

    These are counters, as the guard's histograms may be those of seconds ago.
    """
    if way == HTTP:
        classes = [
            change.increase("envoy_http_downstream_rq_xx", **labels, envoy_response_code_class=each)
            for each in "2345"
        ]
        known = [each for each in classes if each is not None]
        return (sum(known) if known else None), sum(each or 0.0 for each in classes[2:])
    total, good = (
        change.increase(name, **labels) for name in ("envoy_cluster_grpc", "envoy_cluster_grpc_0")
    )
    return total, (total or 0.0) - (good or 0.0)
