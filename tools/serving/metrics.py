"""The server counts requests and tokens, and Prometheus reads the counts."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100  # the ends of the histogram's buckets


class Metrics:
    """Counters, and gauges that are read when Prometheus asks."""

    def __init__(self):
        self.registry = own = CollectorRegistry()
        self.requests = Counter("nanojaxgpt_requests", "Texts asked for: prompts times n", registry=own)
        self.prompt_tokens = Counter("nanojaxgpt_prompt_tokens", "Tokens of their prompts", registry=own)
        self.new_tokens = Counter("nanojaxgpt_new_tokens", "Tokens drawn", registry=own)
        self.first_token = Histogram(
            "nanojaxgpt_first_token_seconds", "Wait for a text's first token", buckets=SECONDS, registry=own
        )

    def add_gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        Gauge(f"nanojaxgpt_{name}", text, registry=self.registry).set_function(read)
