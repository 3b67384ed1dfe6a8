"""Streams merged, clients that leave, and what lies around a request."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from starlette.types import Message

from millrace.serving.openai_api.app import RequestIds, RequestLimit
from millrace.serving.openai_api.connection import ClientGone, EventStream, run_while_connected
from millrace.serving.openai_api.error_response import ApiError
from millrace.serving.openai_api.reply import merge_streams


class Source:
    """A stream that tells whether it was closed."""

    def __init__(self, *items: object, ends: bool = True) -> None:
        self.items, self.ends, self.is_closed = items, ends, False
        self.waits = asyncio.Event()

    async def stream(self) -> AsyncGenerator[object, None]:
        try:
            for item in self.items:
                await asyncio.sleep(0)
                if isinstance(item, Exception):
                    raise item
                yield item
            if not self.ends:
                self.waits.set()
                await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            self.is_closed = True


def test_merged_streams_give_every_item_once_and_each_in_order() -> None:
    async def run() -> list[object]:
        sources = [Source(*(f"{name}{number}" for number in range(50))) for name in "abc"]
        found = [item async for item in merge_streams([source.stream() for source in sources])]
        assert all(source.is_closed for source in sources)
        return found

    found = asyncio.run(run())
    for name in "abc":
        mine = [each for each in found if str(each).startswith(name)]
        assert mine == [f"{name}{number}" for number in range(50)]
    assert len(found) == 150


def test_an_error_of_one_stream_ends_and_closes_all() -> None:
    async def run() -> None:
        sources = [Source(1, ends=False), Source(2, ValueError("no")), Source(3, ends=False)]
        with pytest.raises(ValueError, match="no"):
            async for _ in merge_streams([source.stream() for source in sources]):
                pass
        assert all(source.is_closed for source in sources)

    asyncio.run(run())


def test_whoever_stops_early_closes_all_streams() -> None:
    async def run() -> None:
        sources = [Source(1, ends=False), Source(*range(100))]
        stream = merge_streams([source.stream() for source in sources])
        await anext(stream)
        await stream.aclose()
        assert all(source.is_closed for source in sources)

    asyncio.run(run())


class Client:
    """The ASGI side of a client."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.sent: list[Message] = []

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


SCOPE = {"type": "http", "path": "/v1/models", "headers": []}


def test_work_is_cancelled_to_its_end_when_the_client_leaves() -> None:
    async def run() -> None:
        client, source = Client(), Source(ends=False)

        async def work() -> None:
            async for _ in source.stream():
                pass

        waiting = asyncio.create_task(run_while_connected(client.receive, work()))
        await source.waits.wait()
        assert not waiting.done()
        client.left.set()
        with pytest.raises(ClientGone):
            await waiting
        assert source.is_closed

    asyncio.run(run())


def test_work_that_is_done_or_fails_is_told() -> None:
    async def failing() -> None:
        raise ValueError("no")

    async def run() -> None:
        assert await run_while_connected(Client().receive, asyncio.sleep(0, "done")) == "done"
        with pytest.raises(ValueError, match="no"):
            await run_while_connected(Client().receive, failing())

    asyncio.run(run())


def test_a_stream_is_sent_whole() -> None:
    async def run() -> None:
        client = Client()
        await EventStream(Source(b"a", b"b").stream())(SCOPE, client.receive, client.send)
        assert (client.status, client.body) == (200, b"ab")
        headers = dict(client.sent[0]["headers"])
        assert headers[b"content-type"].startswith(b"text/event-stream")
        assert b"content-length" not in headers
        assert [message.get("more_body") for message in client.sent[1:]] == [True, True, False]

    asyncio.run(run())


def test_a_refusal_before_the_first_event_is_a_response_of_its_own() -> None:
    async def run() -> None:
        client, source = Client(), Source(ApiError(429, "slow down", retry_after=3))
        await EventStream(source.stream())(SCOPE, client.receive, client.send)
        assert client.status == 429
        assert b"slow down" in client.body
        assert dict(client.sent[0]["headers"])[b"retry-after"] == b"3"

    asyncio.run(run())


@pytest.mark.parametrize("items", [(), (b"a",)])
def test_events_are_closed_when_the_client_leaves(items) -> None:
    async def run() -> None:
        client, source = Client(), Source(*items, ends=False)
        response = EventStream(source.stream())
        serving = asyncio.create_task(response(SCOPE, client.receive, client.send))
        await source.waits.wait()
        client.left.set()
        await serving
        assert source.is_closed
        assert client.body == b"".join(items)

    asyncio.run(run())


def test_a_client_that_takes_nothing_is_left(monkeypatch) -> None:
    monkeypatch.setattr("millrace.serving.openai_api.connection.SEND_SECONDS", 0.01)

    async def run() -> None:
        client, source = Client(), Source(b"a", ends=False)

        async def stuck(message: Message) -> None:
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()

        await EventStream(source.stream())(SCOPE, client.receive, stuck)
        assert source.is_closed

    asyncio.run(run())


@pytest.mark.parametrize(
    ("given", "is_kept"),
    [(b"abc-1.2_3:4", True), (b"", False), (b"a b", False), (b"x" * 129, False)],
)
def test_a_request_has_the_clients_id_or_one_of_ours(given, is_kept) -> None:
    seen = []

    async def app(scope, receive, send) -> None:
        seen.append(scope["state"]["request_id"])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def run() -> None:
        client = Client()
        scope = {**SCOPE, "headers": [(b"x-request-id", given)]}
        await RequestIds(app)(scope, client.receive, client.send)
        assert dict(client.sent[0]["headers"])[b"x-request-id"] == seen[0].encode()

    asyncio.run(run())
    assert (seen[0] == given.decode()) == is_kept
    assert is_kept or seen[0].startswith("req_")


def test_only_so_many_requests_are_under_way() -> None:
    async def run() -> None:
        go_on = asyncio.Event()

        async def app(scope, receive, send) -> None:
            await go_on.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})

        shell, clients = RequestLimit(app, max_requests=2), [Client() for _ in range(3)]
        held = [asyncio.create_task(shell(SCOPE, c.receive, c.send)) for c in clients[:2]]
        await asyncio.sleep(0)
        await shell(SCOPE, clients[2].receive, clients[2].send)
        assert clients[2].status == 503
        assert b"overloaded" in clients[2].body
        go_on.set()
        await asyncio.gather(*held)
        again, health = Client(), Client()
        await shell(SCOPE, again.receive, again.send)
        await shell({**SCOPE, "path": "/health"}, health.receive, health.send)
        assert {client.status for client in (*clients[:2], again, health)} == {200}

    asyncio.run(run())
