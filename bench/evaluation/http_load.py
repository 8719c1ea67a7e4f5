# SPDX-License-Identifier: Apache-2.0
"""Requests to a server that speaks OpenAI's completion protocol, and when their tokens came.

An answer is streamed: one server-sent event for a token, or for a few where the server is quicker
than this client. Times are those of this process (time.monotonic), in seconds.
"""

import dataclasses
import hashlib
import http.client
import itertools
import json
import random
import threading
import time

TIMEOUT = 120  # seconds without a byte, after which a request has failed


@dataclasses.dataclass(frozen=True)
class Request:
    at: float  # since the block's begin
    prompt: tuple  # numbers of tokens
    tokens: int  # of the answer, always as many


@dataclasses.dataclass
class Answer:
    scheduled: float
    times: list = dataclasses.field(default_factory=list)  # of events
    tokens: int = 0
    text: str = ""  # hash of the whole answer
    error: str = ""

    def ttft(self):
        """From the scheduled arrival: what waited in a queue has waited."""
        return self.times[0] - self.scheduled

    def tpot(self):
        """Mean time of each token behind the first one; of 2 tokens or more."""
        return (self.times[-1] - self.times[0]) / (self.tokens - 1)

    def record(self):
        """For a file: times since the scheduled arrival."""
        if self.error:
            return {"error": self.error}
        return {"at": round(self.scheduled, 6), "ttft": round(self.ttft(), 6),
                "tpot": round(self.tpot(), 6), "tokens": self.tokens, "text": self.text}


def draw_prompt(draw, vocabulary, prompt_tokens):
    """prompt_tokens[0] to prompt_tokens[1] random tokens; the first three have other meanings."""
    return tuple(draw.randrange(3, vocabulary) for _ in range(draw.randint(*prompt_tokens)))


def draw_requests(rate, seconds, seed, vocabulary, prompt_tokens, tokens):
    """A Poisson process; prompts of prompt_tokens[0] to prompt_tokens[1] random tokens."""
    draw, at, found = random.Random(seed), 0.0, []
    while True:
        at += draw.expovariate(rate)
        if at >= seconds:
            return found
        found.append(Request(at, draw_prompt(draw, vocabulary, prompt_tokens), tokens))


class Server:
    def __init__(self, port, model):
        self.port, self.model = port, model

    def healthy(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def ask(self, request, scheduled):
        """Sends the request now; its Answer."""
        answer = Answer(scheduled)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        try:
            connection.request("POST", "/v1/completions", json.dumps({
                "model": self.model, "prompt": list(request.prompt), "max_tokens": request.tokens,
                "temperature": 0, "ignore_eos": True, "stream": True}),
                {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise http.client.HTTPException(
                    f"status {response.status}: {response.read(200).decode(errors='replace')}")
            digest = hashlib.sha256()
            for line in response:
                if line.startswith(b"data: {"):
                    answer.times.append(time.monotonic())
                    digest.update(json.loads(line[6:])["choices"][0]["text"].encode())
            if not answer.times:
                raise http.client.HTTPException("the answer has no token")
            answer.tokens, answer.text = request.tokens, digest.hexdigest()[:16]
        except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
            answer.error = f"{type(error).__name__}: {error}"
        finally:
            connection.close()
        return answer

    def one_at_a_time(self, requests):
        return [self.ask(r, time.monotonic()) for r in requests]

    def open_loop(self, requests):
        """Each at its time whatever became of those before; waits for all answers."""
        begin, answers = time.monotonic(), [None] * len(requests)

        def one(i):
            answers[i] = self.ask(requests[i], begin + requests[i].at)
        threads = []
        for i, request in enumerate(requests):
            time.sleep(max(0.0, begin + request.at - time.monotonic()))
            threads.append(threading.Thread(target=one, args=(i,)))
            threads[-1].start()
        for thread in threads:
            thread.join()
        return answers

    def closed_loop(self, requests, clients, seconds):
        """So many clients, each with the next request as soon as it has its answer. Requests are
        taken in turn, again and again. All answers, those that ended late among them."""
        until, lock = time.monotonic() + seconds, threading.Lock()
        again, answers = itertools.cycle(requests), []

        def client():
            while time.monotonic() < until:
                with lock:
                    request = next(again)
                answers.append(self.ask(request, time.monotonic()))
                if answers[-1].error:
                    return
        threads = [threading.Thread(target=client) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answers
