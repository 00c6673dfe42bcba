"""What the tests of the door to models share."""

from contextlib import contextmanager

from operators.llm.base import Message
from operators.llm.litellm_model import LiteLLMModel, Patience
from operators.llm.litellm_request import LiteLLMWire
from tests.support.chat_server import ChatServer

WIRE = LiteLLMWire()  # one event loop for all tests
QUICK = Patience(deadline_s=10.0, try_s=3.0, tries=4, first_wait_s=0.01, longest_wait_s=0.05)
ASK = (Message("system", "You write kernels.", stable=True), Message("user", "Make it fast."))


@contextmanager
def served(script, **settings):
    """A server with a script, and a model at the door that asks it."""
    settings = {"patience": QUICK, "wire": WIRE, "max_tokens": 1000, **settings}
    with ChatServer(script) as server:
        yield server, LiteLLMModel("anything", base_url=server.url, **settings)
