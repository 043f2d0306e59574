"""Damage to good files: hostile values in the place of good ones, lost and moved lines, broken bytes."""

from __future__ import annotations

import random
import re

from pydantic import ValidationError

from planner.files.fields import form
from planner.files.nodes import YamlError, parse
from planner.plan.file import WrittenPlan, cluster_digest, model_digest

MARK = "FORGED"
"""Begins a line that only a value of a file can have begun."""

NUMBERS = (
    *(
        "0",
        "-1",
        "1",
        "2",
        "3",
        "7",
        "13",
        "64",
        "1000",
        "104729",
        "1000000",
        "2147483647",
        "9223372036854775808",
    ),
    *(f"1{'0' * 30}", f"1{'0' * 308}", f"1{'0' * 400}", "9" * 5000, "0.5", "1.5", "-0.0", "1e-6", "1e-300"),
    *(
        "5e-324",
        "1e6",
        "1e15",
        "1e300",
        "1.7e308",
        "1e9999",
        ".inf",
        "-.inf",
        ".nan",
        "0x1F",
        "0o17",
        "1_000",
    ),
)
TEXTS = (
    *(
        r'"\e[31mred\e[0m"',
        rf'"\n{MARK}"',
        rf'"x\r{MARK}"',
        r'"\u202eevil"',
        rf'"\u2028{MARK}"',
        r'"\u2066x\u2069"',
    ),
    *(
        rf'"\x85{MARK}"',
        r'"\0"',
        r'"\a\b\t"',
        r'"\u200b"',
        r'"\ufeff"',
        '"[bold]x[/bold]"',
        '"[/]"',
        "'$(touch x)'",
    ),
    *(
        "''",
        "~",
        "null",
        "true",
        "[]",
        "{}",
        "[[1]]",
        "{a: 1}",
        "x" * 5000,
        "'../../x'",
        "'a b'",
        "é",
        "😀",
        "&a [*a]",
    ),
    *(
        "*nope",
        "{<<: [1]}",
        "!!python/object:os.system x",
        "'n[1-99999999]'",
        "9999 x T4",
        "T4",
        "ib",
        "megatron",
    ),
)
"""YAML for values; the quoted ones are characters that a terminal would obey."""
BYTES = (
    *(
        b"\x00",
        b"\xff",
        b"\xef\xbb\xbf",
        b"\t",
        b"\r",
        b"\x1b[2J",
        b"\xc2\x85",
        b"\xe2\x80\xa8",
        b"\xe2\x80\xae",
        b": ",
    ),
    *(
        b"- ",
        b"[",
        b"}",
        b"'",
        b'"',
        b"#",
        b"\n---\n",
        b"%",
        b"<<: *a\n",
        b"[" * 3000,
        b"a: 1\n" * 2000,
        b"," * 50,
    ),
)
ARGUMENTS = (
    *("", " ", "-", "--", "=", ".", ",", "..", "0", "x" * 5000, "../../x", "$(touch x)", "*", "nan", "inf"),
    *("\x1b[31mred", f"\n{MARK}", f"x\r{MARK}", "\u202eevil", f"\u2028{MARK}", "\x07\t", "\ufeff", "[/]"),
    *("[bold]x[/bold]", "é", "😀", "\udcff", "{a: 1}", "[1, 2]", "!!python/object:os.system x", "&a [*a]"),
)
"""Words of a command line; one is no Unicode, as the system hands it on."""
_VALUE = re.compile(r"(?<=[:\[,\-] )[^\s,\[\]{}#]+|(?<=\[)[^\s,\[\]{}]+|(?<=,)[^\s,\[\]{}\"]+")
_KEY = re.compile(r"\b[a-z_]{2,}(?=:)")
_DIGEST = re.compile(r"(?m)^(  (cluster|model): )'?[0-9a-f]{16}'?$")


def damaged(text: str, chance: random.Random) -> bytes:
    """The file with one to three things wrong; most stay well-formed, so that what reads them is reached."""
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        text = chance.choice((_value, _value, _value, _value, _key, _line))(text, chance)
    content = redigested(text).encode() if chance.random() < 0.9 else text.encode()
    return _bytes(content, chance) if chance.random() < 0.15 else content


def damaged_argument(text: str, chance: random.Random) -> str:
    """A word of the command line with something else in it, or another one in its place."""
    new = chance.choice((*ARGUMENTS, chance.choice(NUMBERS)))
    at, to = sorted(chance.randrange(len(text) + 1) for _ in range(2))
    parts = re.split(r"([=.:,+-])", text)
    how = chance.randrange(4)
    if how == 0:
        return new
    if how == 1:
        return text[:at] + new + text[to:]
    if how == 2:
        return text[:at] + text[to:]
    return "".join([*parts[:-1], new])


def redigested(text: str) -> str:
    """A plan file with fingerprints that are right again, so that what is behind their check is reached."""
    if not _DIGEST.search(text):
        return text
    try:
        inputs = form(WrittenPlan).validate_python(parse(text).data, strict=False).inputs
        found = {"cluster": cluster_digest(inputs.cluster), "model": model_digest(inputs.model)}
    except (ValidationError, YamlError, ValueError):
        return text
    return _DIGEST.sub(lambda match: f"{match[1]}'{found[match[2]]}'", text)


def _value(text: str, chance: random.Random) -> str:
    """A hostile value in the place of a good one, numbers mostly in the place of numbers."""
    found = list(_VALUE.finditer(text))
    numbers = [match for match in found if match[0][0].isdigit()]
    if numbers and chance.random() < 0.6:
        return _put(text, chance.choice(numbers), chance.choice(NUMBERS))
    return _put(text, chance.choice(found), chance.choice((*TEXTS, *NUMBERS))) if found else text


def _key(text: str, chance: random.Random) -> str:
    """A key that is none, or that another mapping has."""
    found = list(_KEY.finditer(text))
    if not found:
        return text
    return _put(text, chance.choice(found), chance.choice((chance.choice(found)[0], *TEXTS[:9])))


def _put(text: str, match: re.Match[str], new: str) -> str:
    return text[: match.start()] + new + text[match.end() :]


def _line(text: str, chance: random.Random) -> str:
    """A line that is gone, there twice, elsewhere, or deeper."""
    lines = text.split("\n")
    at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    how = chance.randrange(4)
    if how == 0:
        del lines[at]
    elif how == 1:
        lines.insert(at, lines[at])
    elif how == 2:
        lines[at], lines[other] = lines[other], lines[at]
    else:
        lines[at] = chance.choice((" ", "    ", "\t")) + lines[at]
    return "\n".join(lines)


def _bytes(content: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(content) + 1)
    how = chance.randrange(4)
    if how == 0:
        return content[:at]
    if how == 1:
        return content[:at] + chance.choice(BYTES) + content[at:]
    if how == 2 and at < len(content):
        return content[:at] + bytes([content[at] ^ (1 << chance.randrange(8))]) + content[at + 1 :]
    return content.replace(b"\n", chance.choice((b"\r\n", b"\r", b"\xc2\x85")))
