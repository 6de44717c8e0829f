"""The lab: answers, what its server refuses, and its page in a browser."""

import contextlib
import dataclasses
import functools
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.parse

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scripts import environment
from small_bert import trained_bert
from small_configs import model_config
from small_m2m import many_languages
from small_models import log_probs, trained, trained_model
from test_attention_maps import CONVOLUTIONAL, RNN, UNIVERSAL, WITHOUT
from test_pages import EVIL, PHONE, SCRIPTS, in_a_browser
from test_pages import tab as tab

from configs import t_dmca
from transformer.exports.workdir import export
from transformer.inference.beam_tree import NEXT
from transformer.inference.model import Model
from transformer.models.decoder_only.decoder_only import DecoderOnlyConfig
from transformer.reports.lab import MOST_BEAM, Lab
from transformer.reports.lab_server import MOST_BYTES, LabServer
from transformer.system.errors import UserError
from transformer.tasks.language_model import LanguageModel
from transformer.tasks.seq2seq import Seq2Seq

ASK = {
    **{"source": "one two", "beam": 3, "length_penalty": 0.6, "temperature": 0.0, "seed": 0},
    **{"beginning": "", "tokens": [], "switches": []},
}
slow = functools.partial(pytest.param, marks=pytest.mark.slow)
OFF = {"map": "cross", "layer": 0, "head": 1, "way": "off"}


def asked(lab, **changes):
    return lab.ask(json.dumps(ASK | changes).encode())


def measured(lab, *switches):
    return lab.measure(json.dumps(ASK | {"switches": switches}).encode())["nll"]


@pytest.fixture(scope="module")
def model(random_params):
    return trained(trained_model(random_params, search={"max_extra_length": 7}), 20)


@pytest.fixture(scope="module")
def lab(model):
    return Lab(model, ["one two\tthree", "three\tone one two"])


def searched(model, sentence="one two", nbest=3, **decoding):
    """What the usual search finds with other settings."""
    task = model.task
    config = dataclasses.replace(task.translator.config, **decoding)
    task = Seq2Seq(task.data, task.tokenizers, task.model, config, task.mesh)
    model = dataclasses.replace(model, task=task)
    return Model(model).search([sentence], nbest=nbest, prefixes=None)[0]


@pytest.mark.parametrize(
    ("run", "ask"),
    [
        ({}, {}),
        slow({"no_repeat_ngram": 2, "coverage_penalty": 0.3}, {"beam": 2, "length_penalty": 0.0}),
        slow({"beam_groups": 3, "diversity": 0.5, "beam_size": 3}, {"length_penalty": 1.4}),
        slow({"length_penalty_form": "power", "beam_size": 1}, {"beam": 1}),
    ],
)
def test_the_outputs_are_those_of_the_search(lab, model, run, ask):
    """And the numbers of the tree fit each other and the model's."""
    task, ask = model.task, ASK | ask
    if run:  # else the other tests share its programs
        config = dataclasses.replace(task.translator.config, **run)
        own = Seq2Seq(task.data, task.tokenizers, task.model, config, task.mesh)
        lab = Lab(dataclasses.replace(model, task=own))
    found = asked(lab, **ask)
    settings = {"beam_size": ask["beam"], "length_penalty": ask["length_penalty"]}
    expected = searched(model, nbest=ask["beam"], **run | settings)
    nodes, outputs = found["nodes"], found["outputs"]
    assert [x["text"] for x in outputs] == [x.text for x in expected]
    for name in ("score", "log_prob"):
        np.testing.assert_allclose(
            [x[name] for x in outputs], [getattr(x, name) for x in expected], rtol=1e-4
        )
    for output, translation in zip(outputs, expected, strict=True):
        path = [nodes[i] for i in output["path"]]
        assert [node["token"] for node in path] == translation.tokens
        chances = np.log([node["probability"] for node in path])
        np.testing.assert_allclose(chances, translation.token_log_probs, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(path[-1]["log_prob"], translation.log_prob, rtol=1e-4)
        assert path[-1]["state"] == "finished"
        if "coverage_penalty" not in run:
            np.testing.assert_allclose(path[-1]["score"], translation.score, rtol=1e-4)
    levels = {}
    for node in nodes[1:]:
        above = nodes[node["parent"]]
        assert above["state"] == "kept"
        total = above["log_prob"] + np.log(node["probability"])
        np.testing.assert_allclose(node["log_prob"], total, rtol=1e-3, atol=1e-4)
        levels.setdefault(node["parent"], []).append(node)
    assert all(len(node["following"]) == (NEXT if node["state"] == "kept" else 0)
               for node in nodes if node["parent"] in (-1, 0))  # fmt: skip
    # The probabilities of the next token are those of a forward pass.
    best = expected[0].tokens
    (given,) = log_probs(model, [(task.tokenizers.source.encode("one two"), best)])
    above = nodes[0]
    texts = [nodes[i]["text"] for i in outputs[0]["path"]]
    for i, text, log_prob in zip(outputs[0]["path"], texts, given, strict=True):
        chances = [p for shown, p in above["following"] if shown == text]
        assert not chances or min(abs(p - np.exp(log_prob)) for p in chances) < 1e-4
        above = nodes[i]


def test_a_beginning_samples_and_switches(lab, model):
    plain = asked(lab)
    assert "".join(piece for piece, _ in plain["pieces"]).replace("·", "") == "onetwo"
    # 1. A token of the tree as the beginning: all outputs go on from there.
    node = next(i for i, x in enumerate(plain["nodes"]) if x["parent"] == 0 and i not in
                plain["outputs"][0]["path"] and x["state"] == "kept")  # fmt: skip
    token = plain["nodes"][node]["token"]
    found = asked(lab, tokens=[token])
    first = [x for x in found["nodes"] if x["parent"] == 0]
    assert [x["token"] for x in first] == [token]
    assert len(found["nodes"][0]["following"]) == NEXT  # what it would rather have written
    typed = asked(lab, beginning="three")
    assert typed["beginning"] == "three"
    assert all(x["text"].startswith("three") for x in typed["outputs"])
    # 2. Samples.
    samples = [asked(lab, temperature=1.5, seed=seed) for seed in (1, 1, 2)]
    texts = [[x["text"] for x in y["outputs"]] for y in samples]
    assert texts[0] == texts[1] != texts[2]
    cold = asked(lab, temperature=0.001)  # takes the most probable token each time
    above = cold["nodes"][0]
    for node in (cold["nodes"][i] for i in cold["outputs"][0]["path"][:-1]):
        assert above["following"][0][0] == node["text"]
        above = node
    # 3. Switches: the plain text under the changed model is what that model says of it.
    asked(lab, temperature=1.5, seed=1)
    changed = asked(lab, switches=[OFF])
    before = changed["before"]
    assert before["text"] == plain["outputs"][0]["text"]
    np.testing.assert_allclose(before["log_prob"], plain["outputs"][0]["log_prob"], rtol=1e-5)
    assert abs(before["now"] - before["log_prob"]) > 1e-3
    sampled = asked(lab, temperature=1.5, seed=2, switches=[OFF])
    assert sampled["before"]["text"] == texts[2][0]
    params = lab._params([OFF])
    task = model.task
    tokens = [plain["nodes"][i]["token"] for i in plain["outputs"][0]["path"]]
    pair = task.tokenizers.source.encode("one two"), tokens
    (own,) = log_probs(dataclasses.replace(model, params=params), [pair])
    np.testing.assert_allclose(before["now"], own.sum(), rtol=1e-4)
    assert asked(lab) == plain


def test_the_nll_of_the_file(lab, model):
    scored = model.task.score(
        model.params, model.extra, ["one two", "three"], ["three", "one one two"]
    )
    expected = -np.mean(np.concatenate([x.token_log_probs for x in scored]))
    nlls = [measured(lab), measured(lab, OFF)]
    np.testing.assert_allclose(nlls[0], expected, rtol=1e-5)
    assert abs(nlls[1] - nlls[0]) > 1e-4
    for lines, message in (
        (["one"], "no pair, source, tab and target, in line 1"),
        (["a\tb", "a\t "], "line 2"),
        (["a\tb"] * 501, "at most 500"),
        (["a\t" + "one " * 300], "line 1 of --file has"),
    ):
        with pytest.raises(UserError, match=message):
            Lab(model, lines)
    with pytest.raises(UserError, match="add --file"):
        measured(Lab(model))


@pytest.mark.slow
@pytest.mark.parametrize("base", [RNN, CONVOLUTIONAL, UNIVERSAL, WITHOUT])
def test_other_families(random_params, base):
    model = trained_model(random_params, base=base, search={"max_extra_length": 7})
    lab = Lab(model, ["one\ttwo"])
    found = asked(lab, source="one 机器 عربي")
    assert len(found["outputs"]) == 3
    assert (found["attention"] is None) == (base is WITHOUT)
    for name, layers in lab.facts()["heads"].items():
        switch = {"map": name, "layer": 0, "head": layers[0][0] - 1, "way": "off"}
        changed = asked(lab, switches=[switch])
        assert changed["before"]["now"] != changed["before"]["log_prob"]
        assert measured(lab, switch) > 0


@pytest.mark.slow
def test_a_decoder_alone_translates_or_continues(random_params):
    changes = {"layers": "LMF", "block_length": 4, "num_heads": 2, "d_model": 14, "d_ff": 11}
    base = model_config(DecoderOnlyConfig, t_dmca, **changes)
    model = trained_model(random_params, base=base, search={"max_extra_length": 9})
    switch = {"map": "decoder", "layer": 1, "head": 1, "way": "off"}
    found = asked(Lab(model), switches=[switch])
    assert found["before"]["now"] != found["before"]["log_prob"]
    task = model.task
    config = dataclasses.replace(task.translator.config, max_extra_length=30)
    task = LanguageModel(task.data, task.tokenizers, task.model, config, task.mesh)
    lab = Lab(dataclasses.replace(model, task=task), ["one two", "three"])
    assert lab.facts()["kind"] == "text"
    found = asked(lab)
    assert "".join(piece for piece, _ in found["pieces"]).replace("·", "") == "onetwo"
    assert all(x["text"].startswith("one two") for x in found["outputs"])
    path = [found["nodes"][i]["token"] for i in found["outputs"][0]["path"]]
    again = asked(lab, tokens=path[:-1])
    assert again["outputs"][0]["text"].startswith(found["outputs"][0]["text"])
    assert asked(lab, source="")["outputs"]
    scored = task.score(model.params, model.extra, ["", ""], ["one two", "three"])
    expected = -np.mean(np.concatenate([x.token_log_probs for x in scored]))
    np.testing.assert_allclose(measured(lab), expected, rtol=1e-5)


@pytest.mark.slow
def test_a_language_that_is_given_has_no_log_probability(tmp_path):
    model = many_languages(tmp_path / "hub")
    lab = Lab(model, ["one two\teins zwei", "two\tzwei"])
    plain = asked(lab)
    assert plain["pieces"][0][0] == "eng_Latn"
    assert plain["nodes"][1]["text"] == "deu_Latn"
    before = asked(lab, switches=[OFF])["before"]
    np.testing.assert_allclose(before["log_prob"], plain["outputs"][0]["log_prob"], rtol=1e-4)
    assert asked(lab, beginning="zwei")["outputs"][0]["text"].startswith("zwei")
    pairs = ["one two", "two"], ["eins zwei", "zwei"]
    scored = model.task.score(model.params, model.extra, *pairs)
    expected = -np.mean(np.concatenate([x.token_log_probs[1:] for x in scored]))
    np.testing.assert_allclose(measured(lab), expected, rtol=1e-5)


@pytest.fixture(scope="module")
def bert(random_params):
    return trained_bert(random_params)


def test_bert_fills_in_masks(bert):
    lab = Lab(bert, ["one two three"])
    found = asked(lab, source="one [MASK] three [MASK]")
    assert [text for text, _ in found["pieces"]] == ["one", "[MASK]", "three", "[MASK]"]
    tokenizer, bound = bert.task.tokenizer, bert.task.model.bind(bert.params)
    ids = [tokenizer.cls, *(i for _, i in found["pieces"]), tokenizer.sep]

    @jax.jit
    def chances(tokens_BS):
        x_BSD, _ = bound.encode(tokens_BS, jnp.zeros_like(tokens_BS))
        return jax.nn.softmax(bound.masked_lm_logits(x_BSD))[0]

    expected_SV = np.asarray(chances(np.array([ids])))
    assert len(found["fills"]) == 2
    for fill, place in zip(found["fills"], (2, 4), strict=True):
        best = np.argsort(-expected_SV[place])[:NEXT]
        assert [text for text, _ in fill] == [tokenizer.pieces[i] for i in best]
        np.testing.assert_allclose([p for _, p in fill], expected_SV[place][best], rtol=1e-4)
    # Each token of the file, hidden by itself.
    words = tokenizer.encode_batch(["one two three"])[0]
    log_prob = 0.0
    for place, word in enumerate(words, 1):
        hidden = [tokenizer.cls, *words, tokenizer.sep]
        hidden[place] = tokenizer.mask
        log_prob += np.log(np.asarray(chances(np.array([[*hidden, 0]])))[place, word])
    nll = measured(lab)
    np.testing.assert_allclose(nll, -log_prob / 3, rtol=1e-4)
    switch = {"map": "encoder", "layer": 0, "head": 0, "way": "uniform"}
    assert asked(lab, source="one [MASK]", switches=[switch])["attention"]
    assert asked(lab, source="one")["fills"] == []


# ---- The server ----


@contextlib.contextmanager
def serving(lab):
    with LabServer(lab, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def server(lab):
    with serving(lab) as found:
        yield found


def sent(server, method="POST", path="ask", content=None, **headers):
    """The status, the headers and the content of an answer; a header of None is left out."""
    url = urllib.parse.urlsplit(server.address)
    body = json.dumps(ASK).encode() if content is None else content
    own = {"Host": url.netloc, "Origin": f"http://{url.netloc}", "Content-Type": "application/json",
           "Content-Length": str(len(body))}  # fmt: skip
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
    connection.putrequest(method, url.path + path if path is not None else "/",
                          skip_host=True, skip_accept_encoding=True)  # fmt: skip
    for name, value in (own | {k.replace("_", "-"): v for k, v in headers.items()}).items():
        if value is not None:
            connection.putheader(name, value)
    connection.endheaders(body if method == "POST" else None)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, answer.headers, content


def test_it_serves_its_page_and_answers(server, lab):
    status, headers, content = sent(server, "GET", "")
    assert status == 200
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe-inline" not in policy.partition("script-src")[2]
    assert headers["Referrer-Policy"] == "no-referrer"
    for other in (b"http://", b"https://", b" src=", b"@import"):  # nothing from elsewhere
        assert other not in content.replace(b"http://www.w3.org/2000/svg", b"")
    status, _, content = sent(server)
    assert status == 200
    assert json.loads(content) == json.loads(json.dumps(asked(lab)))


@pytest.mark.parametrize(
    ("status", "how"),
    [
        (403, {"Host": "evil.example:80"}),  # another name of this machine
        (403, {"Host": None}),
        (403, {"Host": "localhost:80", "method": "GET", "path": ""}),
        (403, {"Origin": "https://evil.example"}),
        (403, {"Origin": "null"}),
        (403, {"Origin": None}),
        (404, {"path": "../ask"}),
        (404, {"path": "../../../etc/passwd", "method": "GET"}),
        (404, {"path": None, "method": "GET"}),
        (404, {"path": "ask?x"}),
        (501, {"method": "OPTIONS"}),
        (501, {"method": "PUT"}),
        (413, {"Content_Length": str(MOST_BYTES + 1)}),
        (413, {"Content_Length": None}),
        (413, {"Content_Length": "-1"}),
        (413, {"Content_Length": "9" * 5000}),
        (413, {"Content_Length": "\u00b2"}),
        (415, {"Content_Type": "text/plain"}),
    ],
)
def test_requests_of_others_are_refused(server, status, how):
    found, headers, content = sent(server, **how)
    assert found == status
    assert b"Access-Control" not in str(headers).encode()
    assert server.path.encode() not in content


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (b"", "the request cannot be used"),
        (b"\xff", "the request cannot be used"),
        (b"[" * 60000, "too many brackets"),
        (b'{"source": "a"}', "is missing"),
        ({"more": 1}, "more is not known"),
        ({"source": 3}, "source is 3; expected a text"),
        ({"source": "  "}, "there is no sentence"),
        ({"source": "one " * 2500}, "this model learned from"),
        ({"beam": 0}, f"the lab draws one of 1 to {MOST_BEAM}"),
        ({"beam": 17}, "the beam is 17"),
        ({"beam": 2.5}, "a whole number"),
        ({"length_penalty": -1}, "decoding.length_penalty is -1"),
        ({"length_penalty": float("nan")}, "finite number"),
        ({"temperature": 1e-9}, "decoding.temperature"),
        ({"temperature": 1e39}, "may be 10 at most"),
        ({"seed": -1}, "a whole number from 0 on"),
        ({"tokens": [2]}, "is not in the vocabulary"),
        ({"tokens": [10**9]}, "is not in the vocabulary"),
        ({"tokens": [7] * 99}, "the prefix of sentence 1 of 1"),
        ({"switches": [OFF | {"head": 9}]}, "no head 10"),
        ({"switches": [{"map": "cross"}]}, "is missing"),
    ],
)
def test_bad_values_get_one_line(server, changes, message):
    is_raw = isinstance(changes, bytes)
    status, _, content = sent(
        server, content=changes if is_raw else json.dumps(ASK | changes).encode()
    )
    error = json.loads(content)["error"]
    assert (status, "\n" in error) == (400, False)
    assert message in error
    assert len(error) < 400


@pytest.mark.parametrize(
    "text", [slow(EVIL), slow(SCRIPTS), "a\0b", "\ud800 one", "\u202eone", "'\"`${1}"]
)
def test_any_text_has_an_answer(server, text):
    status, _, content = sent(server, content=json.dumps(ASK | {"source": text}).encode())
    assert status == 200, content
    assert json.loads(content)["outputs"]


def test_a_model_that_has_diverged(server, lab, model, monkeypatch):
    params = jax.tree.map(lambda x: x * np.nan, model.params)
    monkeypatch.setattr(lab, "model", dataclasses.replace(model, params=params))
    for path in ("ask", "measure"):
        status, _, content = sent(server, path=path)
        assert (status, "has diverged" in str(content)) == (400, True)


def test_a_port_has_one_lab_and_a_closed_page_is_no_error(server, lab, capfd):
    with pytest.raises(UserError, match=r"cannot serve at port \d+: .*; give another --port"):
        LabServer(lab, server.server_address[1])
    for half in (b"POST / HT", b"", b"GET / HTTP/1.0\r\n\r\n", b"GET /\xff HTTP/1.0\r\n\r\n"):
        with socket.create_connection(server.server_address) as connection:
            connection.sendall(half)
    assert sent(server, "GET", "")[0] == 200
    assert capfd.readouterr() == ("", "")
    # Only this machine reaches it.
    assert server.socket.getsockname()[0] == "127.0.0.1"


def test_a_request_that_nobody_waits_for_is_not_answered(server, monkeypatch):
    found, before = [], threading.active_count()
    monkeypatch.setitem(server.answers, f"{server.path}ask", found.append)
    lines = [f"POST {server.path}ask HTTP/1.0", f"Host: {server.host}"]
    lines += [f"Origin: http://{server.host}", "Content-Type: application/json"]
    lines += ["Content-Length: 2", "", "{}"]
    with server.lock, socket.create_connection(server.server_address) as connection:
        connection.sendall("\r\n".join(lines).encode())
        while threading.active_count() == before:
            pass
        connection.close()
    while threading.active_count() > before:
        pass
    assert found == []
    assert sent(server)[0] == 200
    assert found == [json.dumps(ASK).encode()]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command(model, tmp_path, number):
    export(model, tmp_path / "run")
    (tmp_path / "pairs.tsv").write_text("one\ttwo\n")
    command = [sys.executable, "-m", "transformer", "lab", "--workdir=run", "--noopen"]
    options = {"cwd": tmp_path, "text": True, "env": os.environ | environment()}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*command, "--file=pairs.tsv"], **options, **pipes) as process:
        address = process.stdout.readline().strip()
        url = urllib.parse.urlsplit(address)
        connection = http.client.HTTPConnection(url.netloc)
        connection.request("GET", url.path)
        assert b"pairs" in connection.getresponse().read()
        second = subprocess.run(
            [*command, f"--port={url.port}"], capture_output=True, check=False, **options
        )
        assert (second.returncode, second.stdout) == (2, "")
        assert second.stderr.startswith(f"error: cannot serve at port {url.port}")
        assert second.stderr.count("\n") == 1
        process.send_signal(number)
        assert process.communicate(timeout=120) == ("", "")
        assert process.returncode == 0


@in_a_browser
def test_what_a_user_of_the_page_does(tab, lab):
    with serving(lab) as server:
        tab.send("Page.navigate", url="about:blank")
        tab.send("Emulation.setDeviceMetricsOverride",
                 width=PHONE, height=800, deviceScaleFactor=1, mobile=True)  # fmt: skip
        tab.errors.clear()
        tab.send("Page.navigate", url=server.address)
        while tab.read().get("method") != "Page.loadEventFired":
            pass

        def done(script):
            """Runs it, and waits for what it asked the lab."""
            return tab.send(
                "Runtime.evaluate",
                expression=f"(async () => {{ {script}; while (get('lab').hasAttribute('aria-busy') "
                "|| measuring) await new Promise(go => setTimeout(go, 20)); })()",
                awaitPromise=True,
            )

        def text(element):
            return tab.run(f"get({element!r}).textContent")

        typed = json.dumps(EVIL)
        done(f"get('typed').value = {typed}; ask()")
        assert text("problem") == ""
        assert tab.run("document.title") == "Lab: run"
        assert text("source") == EVIL
        assert tab.run("document.querySelectorAll('#lab img, #lab script script').length") == 0
        assert tab.run("document.documentElement.scrollWidth") <= PHONE
        plain = text("outputs")
        key = tab.run("document.querySelector('[data-key=\"cross 0 1\"]').click(); 1")
        done("")
        assert key == 1
        assert "Changed: cross layer 1 head 2 off." in text("chosen")
        assert text("before").startswith("With all heads on: ")
        done("get('reset').click()")
        assert text("outputs") == plain
        # The tree, by keyboard.
        press = "new KeyboardEvent('keydown', {key: %r, bubbles: true})"
        here = "document.activeElement.dispatchEvent"
        done("document.querySelector('#tree g').focus()")
        for name in ("ArrowDown", "ArrowRight", "Enter"):
            done(f"{here}({press % name})")
        assert tab.run("tokens.length") == 1
        assert tab.run("get('tree').contains(document.activeElement)")  # the keyboard goes on
        assert text("problem") == ""
        done("get('beginning').value = 'three '; tokens = []; ask()")
        assert tab.run("get('beginning').value") == "three "  # nobody changes it while one types
        done("matter()")
        assert "each head shows its change" in text("measured")
        done("get('beam').value = 99; ask()")
        assert text("problem") == "the beam is 99; the lab draws one of 1 to 16"
        own = server.address.removesuffix("/")
        assert [x for x in tab.errors if own not in str(x) and "400" not in str(x)] == []
