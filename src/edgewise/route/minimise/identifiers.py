"""The declared set of national identifiers: forms, checks, and the words that name them.

Forms are those that the issuing authorities publish; python-stdnum has the checks.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["IDENTIFIERS", "Identifier"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identifier:
    """One kind of number.

    Attributes:
        country: ISO 3166 code, in small letters.
        name: What it is called there.
        form: How it is written.
        module: Where python-stdnum checks it; empty where there are no check digits, so that
            the form is all there is.
        words: Words that say that a number is one, in small letters without marks.
        alone: Form in which it is found without such a word; empty where there is none.
    """

    country: str
    name: str
    form: str
    module: str = ""
    words: str = ""
    alone: str = ""


def _id(
    country: str, name: str, form: str, module: str = "", words: str = "", alone: str = ""
) -> Identifier:
    return Identifier(
        country=country, name=name, form=form, module=module, words=words, alone=alone
    )


_ANY = ".*"  # the form and the check are enough
_D9 = r"\d{3}[ .\-]?\d{3}[ .\-]?\d{3}"
_D11 = r"\d{11}|\d{3}[ .\-]\d{3}[ .\-]\d{3}[ .\-]\d{2}"
_DATE6 = r"\d{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])"
_DMY6 = r"(?:0[1-9]|[12]\d|3[01])(?:0[1-9]|1[0-2])\d{2}"

IDENTIFIERS: tuple[Identifier, ...] = (
    _id("at", "Versicherungsnummer", r"\d{4} ?\d{6}", "at.vnr", "svnr|versicherung|sv-n|sozial"),
    _id("au", "Tax File Number", r"\d{2,3} ?\d{3} ?\d{3}", "au.tfn", "tfn|tax file"),
    _id(
        "be",
        "Rijksregisternummer",
        rf"{_DATE6}[ \-]?\d{{3}}[ .\-]?\d{{2}}"
        r"|\d{2}\.\d{2}\.\d{2}-\d{3}\.\d{2}",
        "be.nn",
        "rijksregister|registre national|national|insz|niss|nn",
        r"\d\d\.\d\d\.\d\d-.*",
    ),
    _id("bg", "EGN", r"\d{10}", "bg.egn", "egn|\u0435\u0433\u043d"),
    _id("br", "CPF", r"\d{3}\.\d{3}\.\d{3}-\d{2}|\d{11}", "br.cpf", "cpf", r".*\..*-.*"),
    _id(
        "ca",
        "Social Insurance Number",
        _D9,
        "ca.sin",
        r"\bsin\b|social insurance|\bnas\b|assurance sociale",
    ),
    _id("ch", "AHV", r"756\.?\d{4}\.?\d{4}\.?\d{2}", "ch.ssn", "ahv|avs", _ANY),
    _id(
        "cl",
        "RUT",
        r"\d{1,2}\.?\d{3}\.?\d{3}-[\dkK]",
        "cl.rut",
        r"\brut\b|\brun\b",
        r".*\..*\..*-.*",
    ),
    _id("cn", "Resident identity", r"\d{17}[\dXx]", "cn.ric", "", _ANY),
    _id(
        "cz",
        "Rodn\u00e9 \u010d\u00edslo",
        r"\d{6}/?\d{3,4}",
        "cz.rc",
        r"rodne|\brc\b|r\.c\.",
        r"\d{6}/\d{4}",
    ),
    _id(
        "de",
        "Steuer-ID",
        r"\d{2} ?\d{3} ?\d{3} ?\d{3}",
        "de.idnr",
        r"steuer|idnr|id-nr|\btin\b|identifikationsnummer|tax id",
    ),
    _id(
        "de",
        "Rentenversicherungsnummer",
        r"\d{2} ?\d{2} ?\d{2} ?\d{2} ?[A-Za-z] ?\d{3}",
        "",
        r"renten|sozialversicherung|versicherungsnummer|\brvnr|\bsvnr|\bsv-n",
    ),
    _id("dk", "CPR", rf"{_DMY6}-?\d{{4}}", "", r"\bcpr\b|personnummer", r"\d{6}-\d{4}"),
    _id("ee", "Isikukood", r"[1-6]\d{10}", "ee.ik", "isikukood|personal code|isikukoodi"),
    _id("es", "DNI", r"\d{2}\.?\d{3}\.?\d{3}[ \-]?[A-Za-z]", "es.dni", r"\bdni\b|\bnif\b", _ANY),
    _id("es", "NIE", r"[XYZxyz][ \-]?\d{7}[ \-]?[A-Za-z]", "es.nie", r"\bnie\b", _ANY),
    _id(
        "fi",
        "Henkil\u00f6tunnus",
        rf"{_DMY6}[+\-A-FU-Ya-fu-y]\d{{3}}[0-9A-Ya-y]",
        "fi.hetu",
        "hetu|henkilotunnus",
        _ANY,
    ),
    _id(
        "fr",
        "NIR",
        r"[12378] ?\d{2} ?\d{2} ?\d[\dABab] ?\d{3} ?\d{3}(?: ?\d{2})",
        "fr.nir",
        r"\bnir\b|securite sociale|secu\b",
        _ANY,
    ),
    _id(
        "fr",
        "Num\u00e9ro fiscal",
        r"[0-3]\d ?\d{2} ?\d{3} ?\d{3} ?\d{3}",
        "fr.nif",
        r"fiscal|\bnif\b|\bspi\b",
    ),
    _id(
        "gb",
        "National Insurance number",
        r"(?!BG|GB|NK|KN|TN|NT|ZZ|bg|gb|nk|kn|tn|nt|zz)"
        r"[A-CEGHJ-PR-TW-Za-ceghj-pr-tw-z][A-CEGHJ-NPR-TW-Za-ceghj-npr-tw-z]"
        r"[ \-]?\d{2}[ \-]?\d{2}[ \-]?\d{2}[ \-]?[A-Da-d]",
        "",
        r"\bnino\b|national insurance|\bni n",
        r"[A-Z]{2}.*[A-D]",
    ),
    _id("gb", "NHS number", r"\d{3}[ \-]?\d{3}[ \-]?\d{4}", "gb.nhs", r"\bnhs\b|health service"),
    _id("gr", "AMKA", r"\d{11}", "gr.amka", "amka|\u03b1\u03bc\u03ba\u03b1"),
    _id("hr", "OIB", r"\d{11}", "hr.oib", r"\boib\b"),
    _id("ie", "PPS", r"\d{7}[A-Wa-w][ABWabw]?", "ie.pps", r"\bpps", r".*[A-Z]"),
    _id(
        "il",
        "Teudat zehut",
        r"\d{9}",
        "il.idnr",
        "teudat|\u05ea\u05e2\u05d5\u05d3\u05ea|\u05ea.\u05d6",
    ),
    _id(
        "in",
        "Aadhaar",
        r"\d{4}[ \-]?\d{4}[ \-]?\d{4}",
        "in_.aadhaar",
        "aadhaar|aadhar|uidai|\u0906\u0927\u093e\u0930",
    ),
    _id(
        "in",
        "PAN",
        r"[A-Za-z]{3}[ABCFGHLJPTKabcfghljptk][A-Za-z]\d{4}[A-Za-z]",
        "in_.pan",
        r"\bpan\b",
        r"[A-Z]{5}.*",
    ),
    _id(
        "is",
        "Kennitala",
        rf"{_DMY6}-?\d{{4}}",
        "is_.kennitala",
        "kennitala|\\bkt\\b",
        r"\d{6}-\d{4}",
    ),
    _id(
        "it",
        "Codice fiscale",
        r"[A-Za-z]{3} ?[A-Za-z]{3} ?[0-9LMNP-Vlmnp-v]{2}[A-EHLMPR-Ta-ehlmpr-t]"
        r"[0-9LMNP-Vlmnp-v]{2} ?[A-Za-z][0-9LMNP-Vlmnp-v]{3} ?[A-Za-z]",
        "it.codicefiscale",
        "codice fiscale",
        _ANY,
    ),
    _id(
        "jp",
        "My Number",
        r"\d{4}[ \-]?\d{4}[ \-]?\d{4}",
        "jp.in_",
        "my number|mynumber|\u30de\u30a4\u30ca\u30f3\u30d0\u30fc|\u500b\u4eba\u756a\u53f7",
    ),
    _id(
        "kr", "RRN", r"\d{6}-?[1-8]\d{6}", "kr.rrn", "rrn|resident reg|\uc8fc\ubbfc", r"\d{6}-\d{7}"
    ),
    _id("lt", "Asmens kodas", r"[1-6]\d{10}", "lt.asmens", "asmens|personal code"),
    _id(
        "lv",
        "Personas kods",
        r"\d{6}-\d{5}",
        "",
        "personas kod|\\bp\\.k\\.|personal code",
        r"\d{6}-\d{5}",
    ),
    _id("mx", "CURP", r"[A-Za-z]{4}\d{6}[HMXhmx][A-Za-z]{5}[0-9A-Za-z]\d", "mx.curp", "curp", _ANY),
    _id(
        "nl",
        "BSN",
        r"\d{3}[ .]?\d{3}[ .]?\d{3}|\d{4}[ .]\d{2}[ .]\d{3}",
        "nl.bsn",
        r"\bbsn\b|burgerservice|sofinummer|sofi-n",
    ),
    _id(
        "no",
        "F\u00f8dselsnummer",
        r"\d{6}[ .]?\d{5}",
        "no.fodselsnummer",
        "fodselsnummer|personnummer|fnr|fodselsnr",
        _ANY,
    ),
    _id("pl", "PESEL", r"\d{11}", "pl.pesel", "pesel", ""),
    _id(
        "pt",
        "Cart\u00e3o de cidad\u00e3o",
        r"\d{8} ?\d ?[A-Za-z]{2}\d",
        "pt.cc",
        "cartao|cidadao",
        _ANY,
    ),
    _id("pt", "NIF", _D9, "pt.nif", r"\bnif\b|contribuinte|fiscal"),
    _id("ro", "CNP", r"[1-9]\d{12}", "ro.cnp", r"\bcnp\b", _ANY),
    _id(
        "se",
        "Personnummer",
        rf"(?:19|20)?{_DATE6}[\-+]?\d{{4}}",
        "se.personnummer",
        "personnummer|personnr|pnr|person-n",
        r".*[\-+]\d{4}",
    ),
    _id("si", "EMSO", r"\d{13}", "si.emso", "emso|jmbg", _ANY),
    _id(
        "sk",
        "Rodn\u00e9 \u010d\u00edslo",
        r"\d{6}/?\d{3,4}",
        "sk.rc",
        r"rodne|\brc\b|r\.c\.",
        r"\d{6}/\d{4}",
    ),
    _id("tr", "T.C. Kimlik", r"[1-9]\d{10}", "tr.tckimlik", r"kimlik|\btc\b|t\.c\.|tckn"),
    _id(
        "us",
        "Social Security Number",
        r"(?!000|666|9)\d{3}([ \-]?)(?!00)\d{2}\1(?!0000)\d{4}",
        "us.ssn",
        r"\bssn\b|social security|soc\.? sec",
        r"\d{3}-\d{2}-\d{4}",
    ),
    _id(
        "us", "ITIN", r"9\d{2}-?\d{2}-?\d{4}", "us.itin", r"\bitin\b|taxpayer", r"\d{3}-\d{2}-\d{4}"
    ),
    _id("za", "ID number", r"\d{6} ?\d{4} ?\d{2}\d", "za.idnr", r"\bid\b|identity|rsa id", ""),
)
