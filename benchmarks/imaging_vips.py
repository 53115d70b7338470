"""What pyvips makes of pictures, as strictly as it can be told to. Run by imaging.py in an environment of its own.

    python imaging_vips.py measure ROUNDS FILE...
    python imaging_vips.py outcomes FILE...

Prints JSON: CPU and wall seconds a picture and peak memory; or READY WxH, or FAILED and why, by file name.
"""

import json
import os
import sys
import time
from pathlib import Path

os.environ["VIPS_CONCURRENCY"] = "1"
import pyvips

MAX_PIXELS, MAX_SIDE = 100_000_000, 65_535
LOADERS = {"Jpeg", "Png", "Webp", "Nsgif", "Heif"}


class Refused(Exception):
    """The picture is not taken."""


def thumbnails(data: bytes) -> tuple[int, int, list[bytes]]:
    loader = pyvips.vips_lib.vips_foreign_find_load_buffer(data, len(data)) if data else pyvips.ffi.NULL
    name = "" if loader == pyvips.ffi.NULL else pyvips.ffi.string(loader).decode()
    if not any(f"Load{allowed}" in name for allowed in LOADERS):
        raise Refused(f"unsupported_format {name}")
    header = pyvips.Image.new_from_buffer(data, "")
    if header.width * header.height > MAX_PIXELS or max(header.width, header.height) > MAX_SIDE:
        raise Refused("too_many_pixels")
    turned = header.get("orientation") in (5, 6, 7, 8) if header.get_typeof("orientation") else False
    size = (header.height, header.width) if turned else (header.width, header.height)
    options = {"height": 1024, "size": "down"}
    # Asked for where there is nothing to convert, it takes longer than all the rest.
    if header.get_typeof("icc-profile-data") or header.interpretation == "cmyk":
        options["output_profile"] = "srgb"
    # thumbnail_buffer's own fail_on is not passed on to the loader; in the loader's options it is.
    image = pyvips.Image.thumbnail_buffer(data, 1024, option_string="[fail_on=truncated]", **options)
    if image.hasalpha():
        image = image.flatten(background=255)
    image = image.copy_memory()
    small = image.thumbnail_image(256, height=256, size="down")
    return *size, [made.jpegsave_buffer(Q=82, keep="none") for made in (image, small)]


def peak() -> int:
    """The most memory held since this program began, in bytes; getrusage would count the process that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def measure(rounds: int, files: list[bytes]) -> dict[str, float]:
    for data in files:
        thumbnails(data)
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(rounds):
        for data in files:
            thumbnails(data)
    count = rounds * len(files)
    return {
        "cpu": (time.process_time() - cpu) / count,
        "wall": (time.perf_counter() - wall) / count,
        "peak": peak(),
    }


def outcome(data: bytes) -> str:
    try:
        width, height, _ = thumbnails(data)
    except Refused as reason:
        return f"FAILED {reason}"
    except pyvips.Error as error:
        return f"FAILED corrupt_or_truncated {' '.join(str(error).split())[:80]}"
    return f"READY {width}x{height}"


def main() -> None:
    pyvips.cache_set_max(0)
    pyvips.block_untrusted_set(True)
    if sys.argv[1] == "measure":
        result: object = measure(int(sys.argv[2]), [Path(name).read_bytes() for name in sys.argv[3:]])
    else:
        result = {Path(name).name: outcome(Path(name).read_bytes()) for name in sys.argv[2:]}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
