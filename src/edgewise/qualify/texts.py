"""Texts that engines are compared with and checked on; the project's own writing."""

from __future__ import annotations

__all__ = ["AFTER_CONTROL", "HARD_TEXTS", "OTHER_PROSE", "PROSE", "QUESTIONS"]

PROSE = (
    "The lighthouse keeper wrote down the weather every morning before breakfast. On clear days "
    "she counted the fishing boats, and on foggy days she counted the calls of the horn instead. "
    "Nobody had asked her to do it, but the books on her shelf went back forty years, and when "
    "the harbour was rebuilt the engineers came to read them first."
)
# Begins otherwise than the text above, so that a cache that keeps its first tokens is noticed.
OTHER_PROSE = (
    "Nine four two seven is the code for the blue cabinet, and it is not to be told to anybody "
    "who does not already know where the cabinet stands."
)
HARD_TEXTS = (
    "naïve café, Ærøskøbing, Łódź, Đà Nẵng",
    "数字 12345678901234567890 と漢字、한국어 그리고 हिन्दी",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽",
    "e\u0301 is not \u00e9, \ufb01 is not fi, \u212b is not \u00c5",
    "tabs\tand\nnew lines\r\n  and   runs    of spaces   ",
    "0 00 000 0000 3.14159 1,000,000 -42 1e-9",
    "<|im_end|> and </s> and <eos> written as text",
    " leading space",
    "עברית and العربية together",
    "if (a<b&&c>d){return x[i]??0;} // ok",
)
# What may follow a control token, where tokenizers differ about a space in front.
AFTER_CONTROL = ("user", " user", "\nuser", "Über", "42", "👍")
QUESTIONS = (
    "What is the capital of France? Answer in one word.",
    "Write one sentence about a rainy harbour.",
    "List three fruits, separated by commas.",
    "Is seven a prime number? Say yes or no.",
)
