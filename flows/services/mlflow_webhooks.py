"""Where the MLflow of `up` sends webhooks: to our receiver, and to public https addresses.

Whoever may make a webhook names its address, and MLflow's test of it shows what was answered there.
MLflow itself sends to public https addresses only, unless two variables let it send everywhere. Our
receiver is on loopback, so it is an exception, by its exact address: where an address is taken, and
where it is sent to, which an earlier server may have taken or a redirect may name.
"""

from mlflow.store.model_registry import sqlalchemy_store
from mlflow.utils import validation
from mlflow.webhooks import delivery
from requests import Session
from requests.adapters import HTTPAdapter


def send_webhooks_to(receiver: str) -> None:
    """Let this process send webhooks to one address that is not public.

    Args:
        receiver: the whole address.
    """
    judge, protected = validation._validate_webhook_url, delivery._create_webhook_session

    def judged(url: str) -> None:
        if url != receiver:
            judge(url)

    def session() -> Session:
        made = protected()
        # MLflow's adapter ends every connection to what is not public, also after a redirect.
        retries = made.get_adapter(receiver).max_retries  # type: ignore[attr-defined]
        made.mount(receiver, HTTPAdapter(max_retries=retries))
        return made

    for module in (sqlalchemy_store, delivery):
        if module._validate_webhook_url is not judge:
            raise RuntimeError(f"{module.__name__} judges webhooks in another way")
        module._validate_webhook_url = judged  # type: ignore[attr-defined]
    delivery._create_webhook_session = session
