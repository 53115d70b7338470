"""No link within the repository is broken, whatever page it is on."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from support.markdown import ROOT, Page, pages

PAGES = pages()


def broken(page: Page, *, root: Path = ROOT) -> list[str]:
    """Each link of the page that leads nowhere, and why."""
    wrong = []
    for link in page.links:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path
        if not target.is_relative_to(root) or not target.exists():
            wrong.append(f"{link}: there is no such file")
        elif parts.fragment and target.suffix == ".md" and parts.fragment not in Page(target).anchors:
            wrong.append(f"{link}: {target.name} has no heading {parts.fragment}")
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_somewhere(page: Page) -> None:
    assert broken(page) == []


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("[a](there.md) [b](there.md#a-heading) [c](#own) ![d](there.md)\n\n# Own\n", 0),
        ("[a](gone.md)", 1),
        ("[`a`](gone.md)", 1),
        ("![picture](gone.png)", 1),
        ("[a](there.md#another)", 1),
        ("[a](#nowhere)", 1),
        ("`[a](gone.md)` is code\n\n```\n[a](gone.md)\n```\n", 0),
    ],
)
def test_the_check_finds_what_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, faults: int
) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "there.md").write_text("## A `heading`\n")
    (tmp_path / "page.md").write_text(text)
    assert len(broken(Page(tmp_path / "page.md"), root=tmp_path)) == faults


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, ahead = set(), [ROOT / "README.md"]
    while ahead:
        page = Page(ahead.pop())
        if page.path in reached:
            continue
        reached.add(page.path)
        for link in page.links:
            parts = urlsplit(link)
            target = (page.path.parent / unquote(parts.path)).resolve()
            if parts.scheme or not parts.path:
                continue
            ahead += sorted(target.glob("*.md")) if target.is_dir() else [target] if target.suffix == ".md" else []
    assert {page.path for page in PAGES} - reached == set()
