"""Expresses SentencePiece's normalization by parts of the `tokenizers` package.

SentencePiece walks through a text and replaces, at each position, the longest source of its rules,
of one character or of several ("u" and two accents), or else copies one character. The part
`Precompiled` of `tokenizers` reads the same rules differently: it looks up a grapheme of less than
6 bytes as a whole, takes the shortest source that it begins with and drops the rest, and it reads
longer graphemes character by character. So decomposed Hangul stays decomposed, and accents are
lost.

Here, marks in the text make `Precompiled` see single characters. A part `NFC` then composes what
they have become, but nothing across the end of a source, where there is another mark. This is what
the rules say that SentencePiece derives from Unicode (`nmt_nfkc`, `nfkc`, and with `_cf` behind),
except for a few sources, which get a replacement each.
"""

import base64
import collections
import dataclasses
import functools
import itertools
import re
import struct
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from typing import Any

Step = dict[str, Any]

# Code points that are no characters: Unicode leaves them to programs, for marks like these.
_NONCHARACTERS = tuple(map(chr, range(0xFDD0, 0xFDF0)))
# All that normalization can change, combine or reorder: the planes above have none of it.
_CHARACTERS = tuple(map(chr, range(0x30000)))
# Blocks with compositions that are younger than the Unicode tables of `tokenizers`.
_NOT_COMPOSED = re.compile(
    "[\U000105c0-\U000105ff\U00011380-\U000113ff\U00011900-\U0001195f"
    "\U00016100-\U0001613f\U00016d40-\U00016d7f]"
)


@dataclasses.dataclass(frozen=True)
class Normalizer:
    """SentencePiece's normalization as parts of `tokenizers`.

    Attributes:
      steps: the parts, in order.
      removed: characters that the parts remove from a text, but SentencePiece does not.
      decomposed: characters that SentencePiece composes, but the parts do not.
    """

    steps: tuple[Step, ...]
    removed: str
    decomposed: tuple[str, ...]


def normalizer(charsmap: bytes, pieces: Iterable[str], exempt: Collection[str]) -> Normalizer:
    """Returns the normalization of a model.

    Args:
      charsmap: the model's `precompiled_charsmap`.
      pieces: pieces of the model's vocabulary.
      exempt: user-defined symbols, which SentencePiece does not normalize.
    """
    rules = _analysed(charsmap)
    alphabet = set("".join(pieces))
    used = alphabet.union(*rules.table, *rules.table.values())
    end, gap = [mark for mark in _NONCHARACTERS if mark not in used][:2]
    encoded = base64.b64encode(charsmap).decode()
    steps = [
        _replace(rules.gaps, gap),
        {"type": "Precompiled", "precompiled_charsmap": encoded},
        _replace(gap, ""),
    ]
    if not rules.sources:
        return Normalizer(tuple(steps), gap, ())
    # Each replacement searches every text, so those of unknown characters are left out.
    replaced = {
        target: _any(sources)
        for target, sources in rules.others.items()
        if rules.result(target) == target and alphabet.issuperset(target)
    }
    # As in SentencePiece, the search goes on behind the longest source. A source that is replaced
    # has a mark before it too.
    before_end = [_any(exempt), rules.sources, *(rf"[\s\S](?={x})" for x in replaced.values())]
    steps = [
        _replace(rf"(?:{'|'.join(filter(None, before_end))})\K", end),
        *(_replace(rf"(?<=\A|{end}){x}(?={end})", target) for target, x in replaced.items()),
        *steps,
        *([{"type": "NFC"}] if rules.composes else []),
        _replace(end, ""),
    ]
    decomposed = sorted(rules.others.keys() - replaced.keys())
    return Normalizer(tuple(steps), end + gap, tuple(decomposed))


@dataclasses.dataclass(frozen=True)
class _Rules:
    """The rules of a charsmap.

    Attributes:
      table: {source: target}.
      composes: whether `NFC` follows `Precompiled`.
      gaps: a pattern of places in a text such that, of what lies between two places, only single
        characters are sources.
      sources: a pattern of the sources and single characters that an end must follow, because they
        might compose or be reordered with what follows; empty if all sources are single characters.
      others: {target: sources} of several characters that `Precompiled` and `NFC` do not turn into
        their targets.
    """

    table: Mapping[str, str]
    composes: bool
    gaps: str = ""
    sources: str = ""
    others: Mapping[str, Collection[str]] = dataclasses.field(default_factory=dict)

    def result(self, text: str) -> str:
        """Applies `Precompiled` and `NFC` to a text without an end in it."""
        single = "".join([self.table.get(character, character) for character in text])
        return unicodedata.normalize("NFC", single) if self.composes else single


@functools.lru_cache(maxsize=4)
def _analysed(charsmap: bytes) -> _Rules:
    """Returns the rules of a charsmap, with the patterns that `normalizer` needs."""
    table = rules(charsmap)
    several = [source for source in table if len(source) > 1]
    single = table.keys() - several
    analysed = _Rules(table, composes=True)
    if any(analysed.result(x) != table.get(x, x) for x in _CHARACTERS):
        analysed = _Rules(table, composes=False)
    gaps = [rf"(?<=[{_class(single)}])"] if single else []
    if not several:
        return dataclasses.replace(analysed, gaps=gaps[0])
    later = {character for source in several for character in source[1:]}
    # A place between the first and a later character of some source.
    gaps.append(rf"(?<=[{_class({source[0] for source in several})}])(?=[{_class(later)}])")
    # Characters that may belong to the text before them: to a source, or by composition.
    joining = set(later)
    if analysed.composes:
        joining.update(x for x in _CHARACTERS if unicodedata.combining(x))
        joining.update(*(unicodedata.normalize("NFD", x)[1:] for x in _CHARACTERS))
        joining.update(x for x in single if joining.intersection(table[x][:1]))
    sources_of = collections.defaultdict(list)
    for source in several:
        if analysed.result(source) != table[source] or _NOT_COMPOSED.search(source):
            sources_of[table[source]].append(source)
    sources = rf"(?=[\s\S][{_class(joining)}])(?:{_any(several)}|[\s\S])"
    return dataclasses.replace(analysed, gaps="|".join(gaps), sources=sources, others=sources_of)


def _any(texts: Iterable[str]) -> str:
    """Returns a pattern that matches the longest of some texts; "" without texts.

    Texts with equal rests share a branch, which keeps the pattern short.
    """
    root: dict[str, Any] = {}
    for text in texts:
        node = root
        for character in text:
            node = node.setdefault(character, {})
        node[""] = {}
    return _branches(root)


def _branches(node: Mapping[str, Any]) -> str:
    """Returns the pattern of a node of a trie {character: child}, where "" marks a text's end."""
    groups = collections.defaultdict(list)
    for character, child in node.items():
        if character:
            groups[_branches(child)].append(character)
    if not groups:
        return ""
    branches = "|".join(f"[{_class(characters)}]{suffix}" for suffix, characters in groups.items())
    return f"(?:{branches}){'?' if '' in node else ''}"


def _class(characters: Iterable[str]) -> str:
    """Returns a pattern's class of characters, without the brackets."""
    points = sorted(map(ord, characters))
    # Of consecutive characters, point - index is the same.
    runs = itertools.groupby(enumerate(points), lambda pair: pair[1] - pair[0])
    ends = [(run[0][1], run[-1][1]) for run in (list(run) for _, run in runs)]
    return "".join(rf"\x{{{a:X}}}" + (rf"-\x{{{b:X}}}" if b > a else "") for a, b in ends)


def _replace(pattern: str, content: str) -> Step:
    """Returns the part that replaces what matches a pattern."""
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def rules(charsmap: bytes) -> dict[str, str]:
    """Returns the rules {source: target} of a model's `precompiled_charsmap`.

    A charsmap consists of the size of a trie in bytes, the trie, and the targets, each with a zero
    byte at its end. The trie of the bytes of the sources is a double array as Darts-clone writes
    it. The unit of a node has the node's byte, the distance to the base of the node's children, and
    whether a source ends at the node; if so, the unit at that base has the place of the target.
    """
    size = struct.unpack_from("<I", charsmap)[0]
    units = struct.unpack_from(f"<{size // 4}I", charsmap, 4)
    targets = charsmap[4 + size :]
    children = collections.defaultdict(list)
    for index, unit in enumerate(units):
        byte = unit & 0xFF
        if byte and not unit >> 31:
            children[index ^ byte].append(index)
    table = {}
    nodes = [(b"", _base(0, units[0]))]
    while nodes:
        prefix, base = nodes.pop()
        for index in children[base]:
            unit = units[index]
            source = prefix + bytes([unit & 0xFF])
            below = _base(index, unit)
            nodes.append((source, below))
            if unit >> 8 & 1:
                start = units[below] & 0x7FFFFFFF
                table[source.decode()] = targets[start : targets.index(0, start)].decode()
    return table


def _base(index: int, unit: int) -> int:
    """Returns the base of the children of the node with this index and unit."""
    # Darts-clone: bits 10 and up are the distance, which bit 9 shifts by 8.
    return index ^ (unit >> 10 << (8 if unit >> 9 & 1 else 0))
