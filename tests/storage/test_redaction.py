"""Links that are valid because of their signature."""

from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.storage.redaction import REDACTED, Redactor

NAMES = ["sig", "X-Amz-Signature", "X-Goog-Signature", "x-oss-signature", "Signature", "q-signature"]


@pytest.mark.parametrize("name", NAMES)
@given(signature=st.text(min_size=1), place=st.integers(0, 2), quoted=st.booleans())
def test_the_signature_of_a_url_is_redacted_and_nothing_else(
    name: str, signature: str, place: int, quoted: bool
) -> None:
    query = [("sv", "2024-11-04"), ("expires", "1700000000")]
    query.insert(place, (name, signature))
    url = f"https://store.example.net/data/text.csv?{urlencode(query, quote_via=quote)}"
    text = f"data.path='{url}' is absent" if quoted else f"cannot read {url}"
    found = Redactor()(text)
    assert found == text.replace(f"{name}={quote(signature, safe='')}", f"{name}={REDACTED}")
    parts = dict(parse_qsl(urlsplit(url).query))
    assert parts[name] == signature


@pytest.mark.parametrize(
    "text",
    ["https://example.net/a?design=blue&assign=3", "signature=none of these", "model.head.signature=tanh", "sig=3"],
)
def test_what_is_no_signature_stays(text: str) -> None:
    assert Redactor()(text) == text
