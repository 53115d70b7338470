"""What the documentation says, taken apart: links, headings, and what stands as code."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from support.configuration import anchor

ROOT = Path(__file__).parents[2]
NOT_OURS = frozenset({".venv", ".git", ".darkroom", ".pytest_cache", ".hypothesis", "build", "dist", "node_modules"})

_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+(?:\([^()]*\)[^()\s]*)?)\)")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Page:
    """One Markdown file."""

    path: Path

    @property
    def name(self) -> str:
        """Its path in the repository."""
        return self.path.relative_to(ROOT).as_posix()

    @cached_property
    def text(self) -> str:
        """All of it, without comments."""
        return _COMMENT.sub("", self.path.read_text(encoding="utf-8"))

    @cached_property
    def prose(self) -> str:
        """Without blocks of code."""
        return _FENCE.sub("", self.text)

    @cached_property
    def blocks(self) -> list[tuple[str, str]]:
        """Language and text of each block of code."""
        return [(found[1], found[2]) for found in _FENCE.finditer(self.text)]

    def blocks_of(self, language: str) -> list[tuple[str, str]]:
        """First line and the rest of each block in that language."""
        texts = [block.partition("\n") for kind, block in self.blocks if kind == language]
        return [(first, rest) for first, _, rest in texts]

    @cached_property
    def spans(self) -> list[str]:
        """What stands between single backticks."""
        return _SPAN.findall(self.prose)

    @cached_property
    def commands(self) -> list[str]:
        """Lines that somebody may type: of blocks for the shell, and spans; comments and continuations resolved."""
        lines = list(self.spans)
        for language, block in self.blocks:
            if language in ("", "sh", "bash", "console"):
                lines += block.replace("\\\n", " ").splitlines()
        # Indented blocks, as older pages have them.
        lines += [line.strip() for line in self.prose.splitlines() if line.startswith("    ")]
        return [line.split(" #")[0].strip() for line in lines]

    @cached_property
    def links(self) -> list[str]:
        """Where its links and pictures lead."""
        # A span may be a link's text, and may look like a link itself.
        return _LINK.findall(_SPAN.sub("code", self.prose))

    @cached_property
    def anchors(self) -> frozenset[str]:
        """The fragments of its headings, as GitHub makes them."""
        found: dict[str, int] = {}
        names = []
        for heading in _HEADING.findall(self.prose):
            name = anchor(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", ""))
            seen = found.get(name, 0)
            found[name] = seen + 1
            names.append(name if seen == 0 else f"{name}-{seen}")
        return frozenset(names)


def pages() -> list[Page]:
    """Every page of the repository."""
    return [
        Page(path)
        for path in sorted(ROOT.rglob("*.md"))
        if not NOT_OURS.intersection(path.relative_to(ROOT).parts[:-1])
    ]


def sources(*folders: str, endings: tuple[str, ...] = (".py",)) -> str:
    """The text of all files of these folders, or of these files, one behind the other."""
    texts = []
    for folder in folders:
        place = ROOT / folder
        found = [place] if place.is_file() else [path for path in sorted(place.rglob("*")) if path.suffix in endings]
        texts += [path.read_text(encoding="utf-8") for path in found if path.is_file()]
    return "\n".join(texts)
