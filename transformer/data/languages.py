"""Codes of languages, and whether their texts have spaces between words.

A code is one of ISO 639-1, 639-2 or 639-3 in any case, perhaps followed by a script or a region:
`de`, `ger`, `deu`, `pt-BR`, `zh_Hans`, `zho_Hans`, `cmn`. No other file lists languages.
"""

import re
from collections.abc import Iterable

# For each language its two-letter code, its other codes of ISO 639 and, for some, those of the
# languages that it usually means: zh means cmn (Mandarin).
_CODES = """
aa=aar ab=abk ae=ave af=afr ak=aka am=amh an=arg ar=ara/arb as=asm av=ava ay=aym az=aze/azj
ba=bak be=bel bg=bul bi=bis bm=bam bn=ben bo=bod/tib br=bre bs=bos ca=cat ce=che ch=cha co=cos
cr=cre cs=ces/cze cu=chu cv=chv cy=cym/wel da=dan de=deu/ger dv=div dz=dzo ee=ewe el=ell/gre
en=eng eo=epo es=spa et=est/ekk eu=eus/baq fa=fas/per/pes ff=ful fi=fin fj=fij fo=fao fr=fra/fre
fy=fry ga=gle gd=gla gl=glg gn=grn gu=guj gv=glv ha=hau he=heb hi=hin ho=hmo hr=hrv ht=hat
hu=hun hy=hye/arm hz=her ia=ina id=ind ie=ile ig=ibo ii=iii ik=ipk io=ido is=isl/ice it=ita
iu=iku ja=jpn jv=jav ka=kat/geo kg=kon ki=kik kj=kua kk=kaz kl=kal km=khm kn=kan ko=kor kr=kau
ks=kas ku=kur/kmr kv=kom kw=cor ky=kir la=lat lb=ltz lg=lug li=lim ln=lin lo=lao lt=lit lu=lub
lv=lav/lvs mg=mlg/plt mh=mah mi=mri/mao mk=mkd/mac ml=mal mn=mon/khk mr=mar ms=msa/may/zsm
mt=mlt my=mya/bur na=nau nb=nob nd=nde ne=nep/npi ng=ndo nl=nld/dut nn=nno no=nor nr=nbl nv=nav
ny=nya oc=oci oj=oji om=orm/gaz or=ori/ory os=oss pa=pan pi=pli pl=pol ps=pus pt=por qu=que
rm=roh rn=run ro=ron/rum ru=rus rw=kin sa=san sc=srd sd=snd se=sme sg=sag sh=hbs si=sin
sk=slk/slo sl=slv sm=smo sn=sna so=som sq=sqi/alb/als sr=srp ss=ssw st=sot su=sun sv=swe
sw=swa/swh ta=tam te=tel tg=tgk th=tha ti=tir tk=tuk tl=tgl tn=tsn to=ton tr=tur ts=tso tt=tat
tw=twi ty=tah ug=uig uk=ukr ur=urd uz=uzb/uzn ve=ven vi=vie vo=vol wa=wln wo=wol xh=xho
yi=yid/ydd yo=yor za=zha zh=zho/chi/cmn/yue/wuu/hsn/gan/lzh/cjy/cnp/cpx/csp/czh/czo/mnp zu=zul
"""
_TWO_LETTERS = {
    code: two
    for two, _, others in (row.partition("=") for row in _CODES.split())
    for code in others.split("/")
}

# Scripts, each with a language that separates words in the same way.
_SCRIPTS = {
    **dict.fromkeys(("hans", "hant", "hani"), "zh"),
    **dict.fromkeys(("jpan", "hrkt", "hira", "kana"), "ja"),
    **dict.fromkeys(("kore", "hang"), "ko"),
    **{"thai": "th", "laoo": "lo", "khmr": "km", "mymr": "my", "tibt": "bo"},
}
_WITHOUT_SPACES = {*_SCRIPTS.values(), "dz"} - {"ko"}
# Characters of text without spaces between words: Thai to Burmese, Khmer, Tai scripts, kana,
# Chinese characters, Yi and more of Burmese and Tai.
UNSPACED = re.compile(
    "[\u0e00-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf\u3040-\u30ff\u3400-\u4dbf\u4e00-\ua4cf"
    "\ua9e0-\ua9ff\uaa60-\uaadf\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003ffff]"
)
_PAIR = re.compile(r"([a-zA-Z]+(?:[-_][a-zA-Z]{4})?(?:[-_](?:[A-Z]{2}|\d{3}))?)-(.+)")


def language(code: str) -> str:
    """The two-letter code of a language, if it has one; else the code without script and region."""
    first = re.split("[-_]", code.lower())[0]
    return _TWO_LETTERS.get(first, first)


def written_as(code: str) -> str:
    """The language, as `language` has it, that separates words in the same way as this text.

    Mostly the language itself; zh for yue and nan_Hant; "" for zh_Latn, whose words have spaces.
    """
    own, scripts = language(code), [part for part in re.split("[-_]", code) if len(part) == 4]
    if not scripts:
        return own
    of_script = _SCRIPTS.get(scripts[0].lower(), "")
    is_special = own in _WITHOUT_SPACES or own == "ko"
    return own if is_special == bool(of_script) else of_script


def has_spaces(code: str) -> bool:
    """True if a language has spaces between words, as far as its code tells."""
    return written_as(code) not in _WITHOUT_SPACES


def joint(code: str) -> str:
    """The text between two sentences of a language. Thai has spaces there, and nowhere else."""
    return "" if written_as(code) in ("zh", "ja") else " "


def look_without_spaces(texts: Iterable[str]) -> bool:
    """True if most characters of texts belong to writing without spaces between words."""
    found = total = 0
    for text in texts:
        found += len(UNSPACED.findall(text))
        total += sum(map(len, text.split()))
    return 2 * found > total


def pair(languages: str) -> tuple[str, str]:
    """Source and target of `en-de` or `zh-CN-en`; "" for a missing one."""
    match = _PAIR.fullmatch(languages)
    return (match[1], match[2]) if match else (languages, "")
