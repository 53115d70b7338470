"""The page in a real browser, on a whole stack: what a person with a mouse, a keyboard or a bad network does."""

import base64
import io
import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Locator, Page, Route, expect, sync_playwright

from darkroom.cli.photo import dusk
from processor.imaging.thumbhash import thumbhash
from support import pictures
from support.browser import chromium, npm_packages
from system.conftest import World

AXE = "axe-core@4.10.3"
KEPT = "Object.entries(localStorage).flatMap(([, value]) => JSON.parse(value))"
"""The uploads that the browser remembers as unfinished."""
SECONDS = 40_000  # milliseconds, for what the whole pipeline does


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    executable = chromium()
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def owner(request: pytest.FixtureRequest) -> str:
    return f"page-{request.node.name}"[:60]


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    opened = browser.new_context(viewport={"width": 1200, "height": 900})
    opened.set_default_timeout(SECONDS)
    yield opened
    opened.close()


@pytest.fixture
def page(context: BrowserContext, world: World, owner: str) -> Iterator[Page]:
    """The page, signed in. A test fails if it says anything on the console that it should not."""
    opened = context.new_page()
    said: list[str] = []
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    opened.goto(world.stack.page_url(owner))
    expect(opened.locator("#live")).to_have_attribute("data-state", "on")
    yield opened
    # What a test breaks on purpose is told by the browser itself.
    unexpected = [text for text in said if "Failed to load resource" not in text]
    assert unexpected == []


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    files = [tmp_path / f"hills-{number}.jpg" for number in range(3)]
    for number, file in enumerate(files):
        file.write_bytes(dusk(600, 400, seed=number))
    return files


def card(page: Page, name: str) -> Locator:
    return page.locator(".card").filter(has=page.get_by_role("heading", name=name, exact=True))


def expect_state(page: Page, name: str, state: str) -> None:
    expect(card(page, name)).to_have_attribute("data-state", state, timeout=SECONDS)


def assets(world: World, owner: str) -> list[dict[str, Any]]:
    return list(world.db.assets.find({"owner_id": owner}))


def test_three_pictures_become_ready_without_a_reload(page: Page, world: World, owner: str, photos: list[Path]) -> None:
    page.set_input_files("#files", photos)
    for photo in photos:
        expect_state(page, photo.name, "READY")
        image = card(page, photo.name).locator("img")
        expect(image).to_have_attribute("alt", photo.name)
        image.evaluate("one => one.decode()")
        assert image.evaluate("one => one.naturalWidth") == 256
    assert len(assets(world, owner)) == 3
    assert all(one["checksum_sha256"] for one in assets(world, owner)), "the browser's SHA-256 is signed"
    expect(page.locator('[data-tab="ready"] b')).to_have_text("3")
    expect(page.locator("#announce")).to_contain_text("Ready")
    assert page.evaluate(KEPT) == []


def test_until_the_thumbnail_is_there_a_blur_of_it_stands_in(
    page: Page, context: BrowserContext, photos: list[Path]
) -> None:
    page.set_input_files("#files", photos[0])
    expect_state(page, photos[0].name, "READY")
    held: list[Route] = []
    context.route(is_thumbnail, lambda route: held.append(route))  # a function: Playwright takes no built-in
    page.reload()
    blur = card(page, photos[0].name).locator("canvas")
    expect(blur).to_be_visible()
    width, height = blur.evaluate("one => [one.width, one.height]")
    assert max(width, height) == 32
    middle = blur.evaluate("one => [...one.getContext('2d').getImageData(16, 2, 1, 1).data]")
    while not held:  # ends: with the test's own time
        page.wait_for_timeout(20)
    for route in held:
        route.continue_()
    context.unroute(is_thumbnail)
    image = card(page, photos[0].name).locator("img")
    image.evaluate("one => one.decode()")
    expect(blur).to_have_count(0)
    thumbnail = Image.open(io.BytesIO(httpx.get(image.get_attribute("src") or "").content)).convert("RGBA")
    sharp = thumbnail.resize((width, height), Image.Resampling.BOX).getpixel((16, 2))
    assert isinstance(sharp, tuple)
    assert max(abs(one - other) for one, other in zip(middle, sharp, strict=True)) < 40


@pytest.mark.parametrize("clear", [False, True])
@pytest.mark.parametrize("size", [(90, 60), (40, 90), (64, 64), (300, 9)])
def test_the_blur_is_what_the_formats_own_decoder_makes(page: Page, size: tuple[int, int], clear: bool) -> None:
    picture = Image.effect_mandelbrot(size, (-2, -1.2, 1, 1.2), 40)
    bands = [picture, picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT), Image.linear_gradient("L").resize(size)]
    colored = Image.merge("RGBA", [*bands, bands[2] if clear else Image.new("L", size, 255)])
    digest = list(thumbhash(colored))
    reference = (npm_packages("thumbhash@0.1.1") / "thumbhash" / "thumbhash.js").read_text().replace("export ", "")
    theirs = page.evaluate(
        f"{reference}; (() => {{ const {{w, h, rgba}} = thumbHashToRGBA({digest}); return [w, h, ...rgba] }})()"
    )
    ours = page.evaluate(
        """async ([digest, width, height]) => {
            const { decode } = await import("/pages/thumbhash.js");
            return [...decode(btoa(String.fromCharCode(...digest)), width, height).data]
        }""",
        [digest, *theirs[:2]],
    )
    assert len(ours) == len(theirs) - 2
    # Theirs cut off what ours round.
    assert max(abs(one - other) for one, other in zip(ours, theirs[2:], strict=True)) <= 1


def test_what_is_no_thumbhash_is_no_picture(page: Page) -> None:
    for text in ("", "AAAA", "%%", "é"):
        assert page.evaluate("async text => (await import('/pages/thumbhash.js')).decode(text, 8, 8)", text) is None


def test_the_timeline_tells_what_happened(page: Page, photos: list[Path]) -> None:
    page.set_input_files("#files", photos[0])
    expect_state(page, photos[0].name, "READY")
    card(page, photos[0].name).get_by_role("button", name="Details").press("Enter")
    steps = page.locator("#timeline li strong")
    expect(steps).to_have_text(["Registered", "Developing began", "Ready"])
    expect(page.locator("#details-preview img")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#details")).not_to_be_visible()
    expect(card(page, photos[0].name).get_by_role("button", name="Details")).to_be_focused()


def test_a_reload_in_the_middle_goes_on_under_the_same_key(
    page: Page, context: BrowserContext, world: World, owner: str, photos: list[Path]
) -> None:
    held: list[Route] = []
    context.route(is_upload, lambda route: held.append(route))  # a function: Playwright takes no built-in
    page.set_input_files("#files", photos[0])
    expect_state(page, photos[0].name, "uploading")
    while not held:  # ends: with the test's own time
        page.wait_for_timeout(20)
    page.on("dialog", lambda dialog: dialog.accept())  # it asks, since something is being sent
    page.reload()
    for route in held:
        route.abort()
    context.unroute(is_upload)
    expect_state(page, photos[0].name, "missing")
    expect(card(page, photos[0].name)).to_contain_text("a page cannot keep the file itself")
    with page.expect_file_chooser() as chooser:
        card(page, photos[0].name).get_by_role("button", name="Choose the file again").click()
    chooser.value.set_files(photos[1])
    expect(page.locator("#notice")).to_contain_text("another file")
    with page.expect_file_chooser() as chooser:
        card(page, photos[0].name).get_by_role("button", name="Choose the file again").click()
    chooser.value.set_files(photos[0])
    expect_state(page, photos[0].name, "READY")
    assert len(assets(world, owner)) == 1


def test_a_lost_network_is_waited_out_with_the_same_key(
    page: Page, context: BrowserContext, world: World, owner: str, photos: list[Path]
) -> None:
    broken: list[str] = []

    def lose(route: Route) -> None:
        broken.append(route.request.headers.get("idempotency-key", ""))
        route.abort("internetdisconnected")

    context.route(is_upload, lose, times=1)
    page.set_input_files("#files", photos[0])
    expect_state(page, photos[0].name, "READY")
    assert len(broken) == 1

    context.route(re.compile(r"/assets$"), lose)
    page.set_input_files("#files", photos[1])
    expect_state(page, photos[1].name, "retrying")
    expect(card(page, photos[1].name)).to_contain_text("cannot be reached")
    expect_state(page, photos[1].name, "interrupted")
    context.unroute(re.compile(r"/assets$"))
    context.unroute_all()
    card(page, photos[1].name).get_by_role("button", name="Try again").click()
    expect_state(page, photos[1].name, "READY")
    assert len(set(broken[1:])) == 1, "each try has the same key"
    assert len(assets(world, owner)) == 2


def test_an_upload_can_be_cancelled_and_taken_up_again(
    page: Page, context: BrowserContext, world: World, owner: str, photos: list[Path]
) -> None:
    context.route(is_upload, lambda _route: None)
    page.set_input_files("#files", photos[0])
    expect_state(page, photos[0].name, "uploading")
    card(page, photos[0].name).get_by_role("button", name="Cancel").click()
    expect_state(page, photos[0].name, "cancelled")
    context.unroute_all()
    card(page, photos[0].name).get_by_role("button", name="Try again").click()
    expect_state(page, photos[0].name, "READY")
    assert len(assets(world, owner)) == 1


def test_a_file_that_is_no_picture_fails_with_its_reason(page: Page, tmp_path: Path) -> None:
    torn = tmp_path / "torn.jpg"
    torn.write_bytes(pictures.jpeg(300, 200)[:-400])
    page.set_input_files("#files", torn)
    expect_state(page, "torn.jpg", "FAILED")
    expect(card(page, "torn.jpg").locator(".reason")).not_to_be_empty()
    text = tmp_path / "notes.txt"
    text.write_text("no picture")
    page.set_input_files("#files", text)
    expect_state(page, "notes.txt", "refused")
    expect(card(page, "notes.txt")).to_contain_text("content_type")


def test_a_phones_photo_is_taken_though_the_browser_names_no_type(
    page: Page, world: World, owner: str, tmp_path: Path
) -> None:
    photo = tmp_path / "IMG_0001.HEIC"
    photo.write_bytes(pictures.heic(Image.effect_mandelbrot((320, 240), (-2, -1.2, 1, 1.2), 40).convert("RGB")))
    # As a drop does: what the dialog's filter leaves out.
    page.evaluate(
        """encoded => {
            const bytes = Uint8Array.from(atob(encoded), (character) => character.charCodeAt(0));
            const dataTransfer = new DataTransfer();
            dataTransfer.items.add(new File([bytes], "IMG_0001.HEIC", { type: "" }));
            dispatchEvent(new DragEvent("drop", { dataTransfer }));
        }""",
        base64.b64encode(photo.read_bytes()).decode(),
    )
    expect_state(page, photo.name, "READY")
    assert [one["content_type"] for one in assets(world, owner)] == ["image/heic"]


@pytest.mark.parametrize(
    "storage",
    [
        pytest.param("get() { throw new DOMException('blocked', 'SecurityError') }", id="blocked"),
        pytest.param(
            "get() { return { getItem: () => '{\"not\": \"a list\"}', setItem() { throw new DOMException('full', "
            "'QuotaExceededError') }, removeItem() {} } }",
            id="full-and-spoilt",
        ),
    ],
)
def test_a_browser_that_keeps_nothing(
    context: BrowserContext, world: World, owner: str, photos: list[Path], storage: str
) -> None:
    context.add_init_script(
        f"for (const kind of ['localStorage', 'sessionStorage']) Object.defineProperty(window, kind, {{ {storage} }})"
    )
    page = context.new_page()
    page.goto(world.stack.page_url(owner))
    expect(page.locator("#live")).to_have_attribute("data-state", "on")
    page.set_input_files("#files", photos)
    for photo in photos:
        expect_state(page, photo.name, "READY")
    assert len(assets(world, owner)) == 3


@pytest.mark.parametrize("by", ["sign-out", "address"])
def test_owners_do_not_mix(
    page: Page, context: BrowserContext, world: World, owner: str, photos: list[Path], by: str
) -> None:
    page.set_input_files("#files", photos[0])
    expect_state(page, photos[0].name, "READY")
    held: list[Route] = []
    context.route(is_upload, lambda route: held.append(route))  # a function: Playwright takes no built-in
    page.set_input_files("#files", photos[1])
    expect_state(page, photos[1].name, "uploading")
    other = f"{by}-other"
    if by == "sign-out":
        page.get_by_role("button", name="Sign out").click()
        page.locator("#token").fill(world.stack.token(other))
        page.locator("#sign-in").get_by_role("button").click()
    else:
        page.evaluate("token => { location.hash = `token=${token}` }", world.stack.token(other))
    expect(page.locator("#who")).to_have_text(other)
    expect(page.locator("#live")).to_have_attribute("data-state", "on")
    for route in held:
        route.abort()
    context.unroute(is_upload)
    page.set_input_files("#files", photos[2])
    expect_state(page, photos[2].name, "READY")
    expect(page.locator(".card")).to_have_count(1)
    assert [one["filename"] for one in assets(world, other)] == [photos[2].name]
    assert {one["filename"] for one in assets(world, owner)} == {photos[0].name, photos[1].name}


def test_a_running_upload_of_another_tab_is_not_offered_until_that_has_gone(
    page: Page, context: BrowserContext, world: World, owner: str, photos: list[Path]
) -> None:
    context.route(is_upload, lambda route: route.abort())
    page.set_input_files("#files", photos[0])
    expect_state(page, photos[0].name, "retrying")
    other = context.new_page()
    other.goto(world.stack.page_url(owner))
    expect_state(other, photos[0].name, "UPLOADING")
    expect(card(other, photos[0].name).get_by_role("button", name="Forget it")).to_have_count(0)
    page.close(run_before_unload=False)
    expect_state(other, photos[0].name, "missing")
    context.unroute(is_upload)
    with other.expect_file_chooser() as chooser:
        card(other, photos[0].name).get_by_role("button", name="Choose the file again").click()
    chooser.value.set_files(photos[0])
    expect_state(other, photos[0].name, "READY")
    assert len(assets(world, owner)) == 1


def test_what_another_tab_has_taken_up_is_not_forgotten(
    page: Page, context: BrowserContext, world: World, owner: str, photos: list[Path]
) -> None:
    context.route(is_upload, lambda route: route.abort())
    page.set_input_files("#files", photos[0])
    expect_state(page, photos[0].name, "retrying")
    page.close(run_before_unload=False)
    first, second = context.new_page(), context.new_page()
    for one in (first, second):
        one.goto(world.stack.page_url(owner))
        expect_state(one, photos[0].name, "missing")
    with first.expect_file_chooser() as chooser:
        card(first, photos[0].name).get_by_role("button", name="Choose the file again").click()
    chooser.value.set_files(photos[0])
    expect_state(first, photos[0].name, "retrying")
    card(second, photos[0].name).get_by_role("button", name="Forget it").click()
    expect_state(second, photos[0].name, "UPLOADING")
    assert len(second.evaluate(KEPT)) == 1
    first.close(run_before_unload=False)
    second.reload()
    card(second, photos[0].name).get_by_role("button", name="Forget it").click()
    expect_state(second, photos[0].name, "UPLOADING")
    assert second.evaluate(KEPT) == []


def test_an_upload_whose_asset_is_gone_is_forgotten_with_a_word(page: Page, owner: str) -> None:
    gone = {"key": "k", "name": "old.jpg", "size": 1, "type": "image/jpeg", "assetId": str(uuid.uuid4())}
    page.evaluate(
        "([name, list]) => localStorage.setItem(name, list)", [f"darkroom-uploads:{owner}", json.dumps([gone])]
    )
    page.reload()
    expect(page.locator("#notice")).to_contain_text("The upload of old.jpg was not finished")
    expect(page.locator(".card")).to_have_count(0)
    assert page.evaluate(KEPT) == []


def test_an_upload_whose_time_is_over_says_so(page: Page, context: BrowserContext, photos: list[Path]) -> None:
    def too_late(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), "upload": None})

    context.route(re.compile(r"/assets$"), too_late)
    page.set_input_files("#files", photos[0])
    expect_state(page, photos[0].name, "refused")
    expect(card(page, photos[0].name).locator(".reason")).to_contain_text("is over. Drop it again")
    assert page.evaluate(KEPT) == []


@pytest.mark.parametrize("given", ["пароль", "two words", '"quoted"'])
def test_what_can_be_no_token_is_said_at_sign_in(context: BrowserContext, world: World, owner: str, given: str) -> None:
    page = context.new_page()
    page.goto(world.stack.page_url(owner).partition("#")[0])
    page.locator("#token").fill(given)
    page.locator("#sign-in").get_by_role("button").click()
    expect(page.locator("#notice")).to_contain_text("That is no token.")
    expect(page.locator("#work")).to_be_hidden()
    page.locator("#token").fill(world.stack.token(owner))
    page.locator("#sign-in").get_by_role("button").click()
    expect(page.locator("#live")).to_have_attribute("data-state", "on")
    expect(page.locator("#notice")).to_be_hidden()


def test_after_lost_events_older_pages_are_brought_up_to_date_too(
    page: Page, context: BrowserContext, world: World, owner: str, photos: list[Path]
) -> None:
    page.set_input_files("#files", photos[0])
    expect_state(page, photos[0].name, "READY")
    card(page, photos[0].name).get_by_role("button", name="Move to the trash").click()
    (asset,) = assets(world, owner)
    bearer = {"Authorization": f"Bearer {world.stack.token(owner)}"}
    with httpx.Client(base_url=page.url, headers=bearer) as api:
        for number in range(48):  # as many as the page reads at once
            wanted = {"filename": f"{number}.jpg", "content_type": "image/jpeg", "size": 1}
            api.post("/assets", json=wanted, headers={"Idempotency-Key": str(number)}).raise_for_status()
        lost = "event: reset\ndata: {}\n\n"
        told: list[str] = [": alive\n\n"]
        context.route(
            re.compile("/assets/stream$"), lambda route: route.fulfill(content_type="text/event-stream", body=told[-1])
        )
        page.reload()
        expect(page.locator(".card")).to_have_count(49)
        expect(page.locator('[data-tab="trash"] b')).to_have_text("1")
        api.post(f"/assets/{asset['_id']}/restore").raise_for_status()
        told.append(lost)
        expect_state(page, photos[0].name, "READY")


def test_everything_can_be_done_by_keyboard(page: Page, photos: list[Path]) -> None:
    with page.expect_file_chooser() as chooser:
        # In here: while it is focused the browser takes note that the chooser is wanted. A key right after the `with`
        # can be faster than that, and the chooser opens for nobody.
        page.get_by_role("button", name="Choose pictures").focus()
        page.keyboard.press("Enter")
    chooser.value.set_files(photos[0])
    expect_state(page, photos[0].name, "READY")
    page.get_by_role("button", name=re.compile("^Ready")).press("Space")
    expect(card(page, photos[0].name)).to_be_visible()
    page.get_by_role("button", name=re.compile("^Failed")).press("Space")
    expect(card(page, photos[0].name)).not_to_be_visible()
    expect(page.locator("#empty")).to_have_text("Nothing has failed.")


def test_the_trash_takes_and_gives_back(page: Page, photos: list[Path]) -> None:
    page.set_input_files("#files", photos[0])
    expect_state(page, photos[0].name, "READY")
    card(page, photos[0].name).get_by_role("button", name="Move to the trash").click()
    expect(card(page, photos[0].name)).not_to_be_visible()
    page.locator('[data-tab="trash"]').click()
    expect_state(page, photos[0].name, "TRASHED")
    page.reload()
    page.locator('[data-tab="trash"]').click()
    card(page, photos[0].name).get_by_role("button", name="Restore").click()
    expect(card(page, photos[0].name)).not_to_be_visible()
    page.locator('[data-tab="all"]').click()
    expect_state(page, photos[0].name, "READY")
    expect(card(page, photos[0].name).locator("img")).to_be_visible()


def test_a_second_page_sees_what_the_first_does(
    page: Page, context: BrowserContext, world: World, owner: str, photos: list[Path]
) -> None:
    other = context.new_page()
    other.goto(world.stack.page_url(owner))
    expect(other.locator("#live")).to_have_attribute("data-state", "on")
    page.set_input_files("#files", photos[0])
    expect_state(other, photos[0].name, "READY")
    expect(card(other, photos[0].name).locator("img")).to_be_visible()


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_axe_finds_nothing_serious(
    page: Page, context: BrowserContext, photos: list[Path], tmp_path: Path, scheme: Any
) -> None:
    source = (npm_packages(AXE) / "axe-core" / "axe.min.js").read_text()
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    torn = tmp_path / "torn.jpg"
    torn.write_bytes(pictures.jpeg(300, 200)[:-400])
    page.set_input_files("#files", [photos[0], torn])
    expect_state(page, photos[0].name, "READY")
    expect_state(page, "torn.jpg", "FAILED")
    serious = audit(page, source)
    card(page, photos[0].name).get_by_role("button", name="Details").click()
    expect(page.locator("#timeline li")).to_have_count(3)
    serious += audit(page, source)
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Sign out").click()
    expect(page.locator("#sign-in")).to_be_visible()
    serious += audit(page, source)
    assert serious == []


def audit(page: Page, source: str) -> list[str]:
    """Serious and critical findings of axe-core, run in the page's own world beside its strict policy."""
    found: dict[str, Any] = page.evaluate(f"{source}; axe.run(document)")
    return [
        f"{one['id']}: {one['help']} ({node['html'][:120]})"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


def is_thumbnail(url: str) -> bool:
    """Whether this is a presigned GET of a thumbnail."""
    return "/thumb." in url and "X-Amz-Signature" in url


def is_upload(url: str) -> bool:
    """Whether this is a presigned PUT to the storage."""
    return "/original." in url and "X-Amz-Signature" in url and "if-none-match" in url
