import pytest

from transformer.data.languages import _CODES, has_spaces, joint, language, pair, written_as


@pytest.mark.parametrize(
    ("codes", "expected", "written", "spaces"),
    [
        ("de DE ger deu de-AT de_Latn deu-1996", "de", "de", True),
        ("pt por pt-BR", "pt", "pt", True),
        ("zh chi zho cmn yue zh-CN zh_Hans zho_Hant cmn-Hans-CN", "zh", "zh", False),
        ("zh-Latn zho_Latn", "zh", "", True),
        ("nan hak_Latn", None, None, True),
        ("nan_Hant hak-Hans", None, "zh", False),
        ("ja jpn ja-JP jpn_Jpan ja_Hani", "ja", "ja", False),
        ("ko kor ko-KR kor_Hang", "ko", "ko", True),
        ("th tha tha_Thai", "th", "th", False),
        ("my bur mya mya_Mymr", "my", "my", False),
        ("shn_Mymr", "shn", "my", False),
        ("km khm lo lao bo tib bod_Tibt dz", None, None, False),
        ("sr srp srp_Cyrl sr-Latn", "sr", "sr", True),
        ("ara arb arb_Arab", "ar", "ar", True),
        ("target xx", None, None, True),
    ],
)
def test_codes(codes, expected, written, spaces):
    for code in codes.split():
        assert language(code) == expected or expected is None
        assert written_as(code) == written or written is None
        assert has_spaces(code) == spaces


def test_a_code_is_of_one_language():
    rows = [row.partition("=") for row in _CODES.split()]
    codes = [code for two, _, others in rows for code in (two, *others.split("/"))]
    assert len(rows) == 184  # of ISO 639-1
    assert len(set(codes)) == len(codes)
    assert all(
        len(two) == 2 and other.isalpha() for two, _, other in rows for other in other.split("/")
    )


@pytest.mark.parametrize(
    ("codes", "expected"),
    [("zh zh-CN zho_Hans yue jpn ja-JP", ""), ("en ko kor th tha_Thai zh_Latn target", " ")],
)
def test_what_joins_sentences(codes, expected):
    assert {joint(code) for code in codes.split()} == {expected}


@pytest.mark.parametrize(
    ("languages", "expected"),
    [
        ("en-de", ("en", "de")),
        ("EN-DE", ("EN", "DE")),
        ("en-zh-CN", ("en", "zh-CN")),
        ("zh-CN-en", ("zh-CN", "en")),
        ("zh-Hans-CN-en", ("zh-Hans-CN", "en")),
        ("zho_Hans-eng_Latn", ("zho_Hans", "eng_Latn")),
        ("en", ("en", "")),
        ("-de", ("-de", "")),
        ("", ("", "")),
    ],
)
def test_pairs(languages, expected):
    assert pair(languages) == expected
