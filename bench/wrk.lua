-- A script of wrk: POST the JSON that follows `--`, and print the outcome as one line of JSON.

function init(args)
  wrk.method = "POST"
  wrk.headers["Content-Type"] = "application/json"
  wrk.body = args[1]
end

function done(summary, latency, requests)
  local errors = summary.errors
  local unanswered = errors.connect + errors.read + errors.write + errors.timeout
  local line = '{"answers": %d, "refused": %d, "unanswered": %d, "us": %d, "p50_us": %d, "p99_us": %d}\n'
  io.write(string.format(
    line, summary.requests, errors.status, unanswered, summary.duration,
    latency:percentile(50), latency:percentile(99)
  ))
end
