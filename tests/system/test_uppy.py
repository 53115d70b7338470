"""The recipe of docs/uppy.md, as it stands there, with the real Uppy in a real browser."""

import base64
import re
import subprocess
from pathlib import Path

from playwright.sync_api import sync_playwright

from support import pictures
from support.browser import chromium, npm_packages
from support.eventually import eventually
from system.conftest import OWNER, World

RECIPE = Path(__file__).parents[2] / "docs" / "uppy.md"
PACKAGES = ("@uppy/core@6.3.1", "@uppy/aws-s3@6.3.1", "esbuild@0.25.10")


def bundled(folder: Path, modules: Path) -> str:
    """The recipe with all that it imports, as one script that leaves ``darkroomUppy`` in the window."""
    found = re.search(r"```js\n(.*?)```", RECIPE.read_text(), re.DOTALL)
    assert found is not None, "docs/uppy.md has no recipe"
    (folder / "recipe.js").write_text(found[1])
    (folder / "entry.js").write_text('import { darkroomUppy } from "./recipe.js"; window.darkroomUppy = darkroomUppy;')
    (folder / "node_modules").symlink_to(modules)
    command = [str(modules / ".bin" / "esbuild"), "entry.js", "--bundle", "--format=iife", "--outfile=bundle.js"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)
    return (folder / "bundle.js").read_text()


def test_the_recipe_uploads_with_the_real_uppy(world: World, tmp_path: Path) -> None:
    script = bundled(tmp_path, npm_packages(*PACKAGES))
    picture = base64.b64encode(pictures.jpeg(300, 200)).decode()
    executable = chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        # An origin that the bucket lets upload; its own policy is for our page, and yours has one of its own.
        page = browser.new_context(bypass_csp=True).new_page()
        page.goto(f"{world.stack.api_url}/healthz")
        page.add_script_tag(content=script)
        result = page.evaluate(
            """async ({ api, token, picture }) => {
              const uppy = window.darkroomUppy({ api, token: () => token });
              const data = await (await fetch(`data:image/jpeg;base64,${picture}`)).blob();
              uppy.addFile({ name: "from-uppy.jpg", type: "image/jpeg", data });
              const { successful, failed } = await uppy.upload();
              return { ids: successful.map((file) => file.meta.assetId), failed: failed.map((file) => file.error) };
            }""",
            {"api": world.stack.api_url, "token": world.stack.token(OWNER), "picture": picture},
        )
        browser.close()
    assert result["failed"] == []
    (asset_id,) = result["ids"]
    eventually(lambda: world.status(asset_id) == "READY", deadline=40, what="Uppy's picture is READY")
    assert world.uploader.get(asset_id)["filename"] == "from-uppy.jpg"
