"""Write every schema file from the models."""

from pathlib import Path

from darkroom.contracts.schemas import ALL, file_name, render

for data in ALL:
    Path(__file__).with_name(file_name(data)).write_text(render(data), encoding="utf-8")
