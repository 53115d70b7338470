"""The bare loop that the sandbox is measured against: the same library, the same sizes, nothing around it.

    python benchmarks/imaging_bare.py ROUNDS FILE...

Each picture is decoded once with the decoder's own shrinking, resized to fit 1024 and 256, and encoded as JPEG; nothing
is checked, converted or turned. Prints JSON: CPU and wall seconds a picture of the rounds after the first, peak memory.
"""

import json
import sys
import time
from io import BytesIO
from pathlib import Path

from PIL import Image


def thumbnails(data: bytes) -> list[bytes]:
    image: Image.Image = Image.open(BytesIO(data))
    image.draft("RGB", (1024, 1024))
    image = image.convert("RGB")
    made = []
    for side in (1024, 256):
        image.thumbnail((side, side), Image.Resampling.BICUBIC, reducing_gap=2.0)
        file = BytesIO()
        image.save(file, "JPEG", quality=82)
        made.append(file.getvalue())
    return made


def peak() -> int:
    """The most memory held since this program began, in bytes; getrusage would count the process that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def main() -> None:
    rounds = int(sys.argv[1])
    files = [Path(name).read_bytes() for name in sys.argv[2:]]
    for data in files:
        thumbnails(data)
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(rounds):
        for data in files:
            thumbnails(data)
    count = rounds * len(files)
    print(
        json.dumps(
            {
                "cpu": (time.process_time() - cpu) / count,
                "wall": (time.perf_counter() - wall) / count,
                "peak": peak(),
            }
        )
    )


if __name__ == "__main__":
    main()
