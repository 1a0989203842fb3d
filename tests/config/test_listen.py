"""Endpoints: HOST:PORT, HOST or PORT."""

from __future__ import annotations

import pytest

from headrace.config.listen import endpoint_of


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("", ("localhost", None)),
        ("8470", ("localhost", 8470)),
        (":8470", ("localhost", 8470)),
        ("localhost", ("localhost", None)),
        ("all:0", ("all", 0)),
        ("127.0.0.1:8470", ("127.0.0.1", 8470)),
        ("192.168.1.5", ("192.168.1.5", None)),
        ("[::1]:8470", ("::1", 8470)),
        ("[::1]", ("::1", None)),
        ("::1", ("::1", None)),
        ("::", ("::", None)),
    ],
)
def test_an_endpoint_has_a_host_a_port_or_both(text, means):
    assert endpoint_of(text) == means


@pytest.mark.parametrize("text", ["localhost:99999", "localhost:http", "example.org:80", "a:b:c", "-1", "1.2.3.4:-1"])
def test_other_words_are_refused_with_what_is_expected(text):
    with pytest.raises(ValueError, match="expected HOST:PORT|expected localhost"):
        endpoint_of(text)
