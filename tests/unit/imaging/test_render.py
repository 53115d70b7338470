"""What comes of each kind of picture, in this process."""

import struct
import warnings
from io import BytesIO

import pytest
from PIL import Image, ImageFile

from processor.imaging.failure import FailureCode, Rejected
from processor.imaging.render import render
from processor.imaging.rendition import (
    Fit,
    Limits,
    OutputFormat,
    Rendered,
    RenditionBytes,
    RenditionSpec,
    SourceFormat,
    default_specs,
)
from support import pictures

WHOLE = RenditionSpec(name="whole", box=(4096, 4096), quality=95)
AVIF = RenditionSpec(name="whole", box=(4096, 4096), format=OutputFormat.AVIF, quality=95)
WEBP = RenditionSpec(name="whole", box=(4096, 4096), format=OutputFormat.WEBP, quality=95)


def made(data: bytes, *specs: RenditionSpec, limits: Limits | None = None) -> Rendered:
    return render(data, specs or default_specs(), limits or Limits())


def refusal(data: bytes, limits: Limits | None = None) -> FailureCode:
    with pytest.raises(Rejected) as caught:
        made(data, limits=limits)
    assert caught.value.message
    return caught.value.code


def opened(rendition: RenditionBytes) -> Image.Image:
    image = Image.open(BytesIO(rendition.data))
    image.load()
    return image


def close_to(actual: object, expected: tuple[int, ...], tolerance: int = 14) -> bool:
    assert isinstance(actual, tuple)
    return all(abs(one - other) <= tolerance for one, other in zip(actual, expected, strict=True))


def corners(image: Image.Image) -> list[object]:
    width, height = image.size
    points = ((0.2, 0.2), (0.8, 0.2), (0.2, 0.8), (0.8, 0.8))
    return [image.convert("RGB").getpixel((int(width * x), int(height * y))) for x, y in points]


def assert_upright(image: Image.Image) -> None:
    assert all(map(close_to, corners(image), pictures.CORNERS)), corners(image)


@pytest.mark.parametrize("name", pictures.all_formats())
def test_every_accepted_format_gives_both_renditions(name: str) -> None:
    result = made(pictures.all_formats(2000, 1000)[name])

    assert (result.format, result.width, result.height) == (SourceFormat(name), 2000, 1000)
    thumb, preview = result.renditions
    assert (thumb.name, thumb.width, thumb.height) == ("thumb", 256, 128)
    assert (preview.name, preview.width, preview.height) == ("preview", 1024, 512)
    for rendition in (thumb, preview):
        assert (rendition.content_type, rendition.extension) == ("image/jpeg", "jpg")
        image = opened(rendition)
        assert (image.format, image.size) == ("JPEG", (rendition.width, rendition.height))
        assert_upright(image)


def test_webp_by_setting() -> None:
    for rendition in made(pictures.jpeg(600, 300), *default_specs(OutputFormat.WEBP)).renditions:
        assert (rendition.content_type, rendition.extension) == ("image/webp", "webp")
        assert opened(rendition).format == "WEBP"


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA"])
def test_avif_by_setting(mode: str) -> None:
    data = pictures.encoded(pictures.quarters(600, 300, mode), "PNG")
    for rendition in made(data, *default_specs(OutputFormat.AVIF)).renditions:
        assert (rendition.content_type, rendition.extension) == ("image/avif", "avif")
        image = opened(rendition)
        assert (image.format, image.size) == ("AVIF", (rendition.width, rendition.height))
        if mode.startswith("RGB"):
            assert_upright(image)


@pytest.mark.parametrize("output", OutputFormat)
@pytest.mark.parametrize("size", [(1, 3000), (3000, 1), (1, 1)])
def test_every_output_takes_the_thinnest_pictures(output: OutputFormat, size: tuple[int, int]) -> None:
    data = pictures.encoded(Image.new("RGB", size, pictures.RED), "PNG")
    (one,) = made(data, RenditionSpec(name="one", box=(256, 256), format=output)).renditions
    assert opened(one).size == (one.width, one.height) == (min(size[0], 256), min(size[1], 256))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_cover_fills_the_box_with_the_middle(orientation: int, form: str) -> None:
    # Black bands left and right, which a square from the middle does not show.
    upright = Image.new("RGB", (3000, 1000))
    upright.paste(pictures.quarters(1000, 1000), (1000, 0))
    stored = pictures.stored_for(upright, orientation)
    data = pictures.encoded(stored, form, exif=pictures.oriented_exif(orientation), quality=95)
    square = RenditionSpec(name="square", box=(200, 200), fit=Fit.COVER, quality=95)
    whole = RenditionSpec(name="whole", box=(1500, 1500))
    for specs in ((square,), (square, whole), (whole, square)):
        result = made(data, *specs)
        found = {one.name: one for one in result.renditions}
        image = opened(found["square"])
        assert image.size == (200, 200)
        assert_upright(image)
        assert all(map(close_to, (image.getpixel((3, 3)), image.getpixel((196, 196))), (pictures.RED, pictures.WHITE)))
        assert [one.name for one in result.renditions] == [spec.name for spec in specs]


@pytest.mark.parametrize(
    ("size", "enlarge", "expected"),
    [
        ((50, 40), False, (50, 40)),
        ((500, 50), False, (100, 50)),
        ((50, 40), True, (100, 100)),
        ((1, 9000), False, (1, 100)),
    ],
)
def test_cover_of_a_small_picture(size: tuple[int, int], enlarge: bool, expected: tuple[int, int]) -> None:
    spec = RenditionSpec(name="square", box=(100, 100), fit=Fit.COVER, enlarge=enlarge)
    (one,) = made(pictures.jpeg(*size), spec).renditions
    assert opened(one).size == expected


def test_a_small_picture_is_enlarged_only_when_asked() -> None:
    same = RenditionSpec(name="same", box=(500, 500))
    larger = RenditionSpec(name="larger", box=(500, 500), enlarge=True)
    sizes = [(one.width, one.height) for one in made(pictures.jpeg(50, 40), same, larger).renditions]
    assert sizes == [(50, 40), (500, 400)]


@pytest.mark.parametrize(("size", "thumb"), [((1, 20_000), (1, 256)), ((20_000, 1), (256, 1)), ((3, 3000), (1, 256))])
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_no_side_is_ever_zero(size: tuple[int, int], thumb: tuple[int, int], form: str) -> None:
    result = made(pictures.encoded(Image.new("RGB", size, pictures.RED), form))
    assert (result.width, result.height) == size
    assert (result.renditions[0].width, result.renditions[0].height) == thumb


def test_odd_sizes_keep_their_edges_when_the_decoder_shrinks() -> None:
    for width, height in ((2049, 1537), (3071, 2047), (4097, 999)):
        thumb, preview = made(pictures.jpeg(width, height)).renditions
        assert max(preview.width, preview.height) == 1024
        assert max(thumb.width, thumb.height) == 256
        assert_upright(opened(preview))


@pytest.mark.parametrize("form", ["JPEG", "WEBP", "PNG"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied_once_and_dropped(orientation: int, form: str) -> None:
    stored = pictures.stored_for(pictures.quarters(80, 40), orientation)
    data = pictures.encoded(stored, form, exif=pictures.oriented_exif(orientation), quality=95)

    result = made(data, WHOLE, RenditionSpec(name="small", box=(40, 400)))

    assert (result.width, result.height) == (80, 40)
    assert [(one.width, one.height) for one in result.renditions] == [(80, 40), (40, 20)]
    for rendition in result.renditions:
        image = opened(rendition)
        assert_upright(image)
        assert not image.getexif()


@pytest.mark.parametrize("orientation", [5, 6, 7, 8])
def test_orientation_with_a_shrinking_decoder_and_an_oblong_box(orientation: int) -> None:
    stored = pictures.stored_for(pictures.quarters(3000, 2000), orientation)
    data = pictures.encoded(stored, "JPEG", exif=pictures.oriented_exif(orientation))
    result = made(data, RenditionSpec(name="wide", box=(1500, 200)))
    (wide,) = result.renditions
    assert (result.width, result.height, wide.width, wide.height) == (3000, 2000, 300, 200)
    assert_upright(opened(wide))


@pytest.mark.parametrize("orientation", [3, 5, 6, 8])
def test_avif_is_turned_by_its_own_property_alone(orientation: int) -> None:
    stored = pictures.stored_for(pictures.quarters(80, 40), orientation)
    # Pillow writes the orientation of EXIF as irot and imir.
    result = made(pictures.encoded(stored, "AVIF", exif=pictures.oriented_exif(orientation), quality=95), WHOLE)
    assert (result.width, result.height) == (80, 40)
    assert_upright(opened(result.renditions[0]))


def test_orientation_that_only_xmp_knows_is_applied() -> None:
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    stored = pictures.stored_for(pictures.quarters(80, 40), 6)
    chunk = pictures.png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp)
    plain = pictures.encoded(stored, "PNG")
    result = made(plain[:33] + chunk + plain[33:], WHOLE)
    assert (result.width, result.height) == (80, 40)
    assert_upright(opened(result.renditions[0]))


@pytest.mark.parametrize("form", ["JPEG", "WEBP"])
@pytest.mark.parametrize("by_exif", [None, 8])
def test_xmp_turns_a_picture_only_where_exif_does_not(form: str, by_exif: int | None) -> None:
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    stored = pictures.stored_for(pictures.quarters(80, 40), by_exif or 6)
    options = {} if by_exif is None else {"exif": pictures.oriented_exif(by_exif)}
    result = made(pictures.encoded(stored, form, xmp=xmp, quality=95, **options), WHOLE)
    assert (result.width, result.height) == (80, 40)
    assert_upright(opened(result.renditions[0]))


@pytest.mark.parametrize("value", [0, 9, 65_535])
def test_an_orientation_that_does_not_exist_is_ignored(value: int) -> None:
    result = made(pictures.jpeg(80, 40, exif=pictures.oriented_exif(value)), WHOLE)
    assert_upright(opened(result.renditions[0]))


@pytest.mark.parametrize(
    "block", [b"", b"garbage in place of a directory", b"II*\0\xff\xff\xff\xff", b"MM\0*\0\0\0\x08\0\xff"]
)
@pytest.mark.parametrize("form", ["JPEG", "WEBP", "PNG"])
def test_broken_exif_neither_fails_a_picture_nor_warns(form: str, block: bytes) -> None:
    if form == "JPEG":
        data = pictures.with_segment(pictures.jpeg(), 0xE1, b"Exif\0\0" + block)
    else:
        data = pictures.encoded(pictures.quarters(), form, exif=b"Exif\0\0" + block, quality=95)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_upright(opened(made(data, WHOLE).renditions[0]))


@pytest.mark.parametrize("data", [b"", b"\xff"])
def test_nothing_and_next_to_nothing(data: bytes) -> None:
    assert refusal(data) is (FailureCode.UNSUPPORTED_FORMAT if data else FailureCode.EMPTY_OBJECT)


@pytest.mark.parametrize(
    "data",
    [
        b"<html><script>alert(1)</script></html>",
        b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"/>',
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        b"%PDF-1.7\n",
        pictures.encoded(pictures.quarters(), "TIFF"),
        pictures.encoded(pictures.quarters(), "BMP"),
        pictures.encoded(pictures.quarters(), "JPEG2000"),
        b"\0\0\0\x18ftypmif1\0\0\0\0mif1miaf" + bytes(40),
    ],
)
def test_formats_by_content_with_no_reader_but_those_allowed(data: bytes) -> None:
    assert refusal(data) is FailureCode.UNSUPPORTED_FORMAT


@pytest.mark.parametrize("name", pictures.all_formats())
def test_a_truncated_file_is_refused_also_the_second_time(name: str) -> None:
    whole = pictures.all_formats(300, 200)[name]
    for length in (len(whole) // 2, len(whole) * 9 // 10):
        for _ in range(2):
            assert refusal(whole[:length]) is FailureCode.CORRUPT_OR_TRUNCATED
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False


def test_a_jpeg_without_its_end_marker_is_refused() -> None:
    assert refusal(pictures.jpeg()[:-2]) is FailureCode.CORRUPT_OR_TRUNCATED


def test_a_png_with_a_wrong_checksum_in_its_data_is_refused_each_time() -> None:
    data = bytearray(pictures.encoded(pictures.quarters(300, 200), "PNG"))
    data[data.index(b"IDAT") + 10] ^= 0x55
    for _ in range(2):
        assert refusal(bytes(data)) is FailureCode.CORRUPT_OR_TRUNCATED


@pytest.mark.parametrize("data", [pictures.text_bomb(), pictures.profile_bomb()])
def test_metadata_that_expands_without_bound(data: bytes) -> None:
    assert refusal(data) is FailureCode.DECOMPRESSION_BOMB


def test_pixels_are_counted_before_any_is_decoded() -> None:
    webp = b"RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + (15_999).to_bytes(3, "little") * 2
    gif = b"GIF89a" + struct.pack("<HH", 60_000, 60_000) + bytes(3)
    for data in (pictures.pixel_bomb(), pictures.png(30_000, 30_000), webp, gif, pictures.png(13_000, 13_000)[:40]):
        assert refusal(data) is FailureCode.TOO_MANY_PIXELS


def test_a_jpeg_made_of_scans_is_refused_before_they_are_decoded() -> None:
    assert refusal(pictures.many_scans_jpeg(400, 400, 500)) is FailureCode.DECODE_TIMEOUT
    assert made(pictures.many_scans_jpeg(400, 400, 50)).width == 400


def test_of_a_jpeg_that_is_whole_after_one_scan_no_others_are_counted() -> None:
    data = pictures.jpeg(64, 40)
    begin = data.index(b"\xff\xda")
    scan, end = data[begin:-2], data[-2:]
    # What follows the picture is nobody's scan, as with the further pictures of a file.
    assert made(data + scan * 500).width == 64
    # No decoder comes as far as to a second scan, or else this would be slow.
    assert refusal(data[:-2] + scan * 500 + end) is FailureCode.CORRUPT_OR_TRUNCATED
    # A first scan of one component alone announces others.
    alone = b"\xff\xda\0\x08\x01\x01\0\0\x3f\0"
    assert refusal(data[:begin] + alone * 500 + end) is FailureCode.DECODE_TIMEOUT


def test_the_ceilings_are_settings_and_pillows_own_has_no_say() -> None:
    assert refusal(pictures.jpeg(64, 40), Limits(max_pixels=2559)) is FailureCode.TOO_MANY_PIXELS
    assert refusal(pictures.jpeg(64, 40), Limits(max_side=63)) is FailureCode.TOO_MANY_PIXELS
    assert refusal(pictures.jpeg(64, 40), Limits(max_decode_bytes=9_000)) is FailureCode.TOO_MANY_PIXELS
    assert made(pictures.jpeg(64, 40), limits=Limits(max_pixels=2560, max_side=64)).width == 64
    before = Image.MAX_IMAGE_PIXELS
    large = made(pictures.pixel_bomb(10_000), limits=Limits())  # above the size at which Pillow warns
    assert (large.width, Image.MAX_IMAGE_PIXELS) == (10_000, before)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_every_pixel_mode_of_png(mode: str) -> None:
    data = pictures.encoded(pictures.quarters(mode=mode), "PNG")
    image = opened(made(data, WHOLE).renditions[0])
    assert image.mode == ("L" if mode in ("1", "L") else "RGB")
    if mode in ("P", "RGB", "RGBA"):
        assert_upright(image)


def test_16_bit_grey_is_scaled_and_not_clipped() -> None:
    image = opened(made(pictures.grey16_ramp(), WHOLE).renditions[0])
    assert len(set(image.crop((0, 8, 256, 9)).tobytes())) > 200
    assert abs(image.resize((1, 1)).tobytes()[0] - 128) < 4


def test_16_bit_grey_with_a_transparent_level_shows_the_background() -> None:
    spec = RenditionSpec(name="whole", box=(999, 999), quality=95, background=pictures.RED)
    image = opened(made(pictures.grey16_ramp(transparent=0, width=2), spec).renditions[0]).convert("RGB")
    # Two columns; JPEG's chroma is blurred over them, red is still the one without green.
    left, right = image.getpixel((0, 8)), image.getpixel((1, 8))
    assert isinstance(left, tuple)
    assert isinstance(right, tuple)
    assert left[1] < right[1]


def transparent_disc(mode: str) -> Image.Image:
    """Green in the middle; around it transparent pixels whose hidden colour is black."""
    image = Image.new("RGBA", (200, 200), (0, 0, 0, 0))
    image.paste((0, 255, 0, 255), (50, 50, 150, 150))
    return image.convert(mode) if mode != "P" else image.quantize(8)


@pytest.mark.parametrize(
    ("mode", "form"), [("RGBA", "PNG"), ("P", "PNG"), ("RGBA", "WEBP"), ("RGBA", "GIF"), ("RGBA", "AVIF")]
)
def test_transparency_becomes_the_background_without_a_dark_fringe(mode: str, form: str) -> None:
    options = {"lossless": True} if form == "WEBP" else {}
    data = pictures.encoded(transparent_disc(mode), form, **options)
    spec = RenditionSpec(name="small", box=(50, 50), quality=100)
    (small,) = made(data, spec).renditions
    image = opened(small)
    assert close_to(image.getpixel((2, 2)), pictures.WHITE)
    assert close_to(image.getpixel((25, 25)), (0, 255, 0))
    # Between white and green all pixels are full of green but for JPEG's ringing; hidden black would show as 128.
    assert min(image.getchannel("G").tobytes()) > 200


def test_transparency_is_kept_in_webp_and_shows_the_chosen_background_in_jpeg() -> None:
    data = pictures.encoded(transparent_disc("RGBA"), "PNG")
    webp = opened(made(data, WEBP).renditions[0])
    assert webp.mode == "RGBA"
    assert webp.getchannel("A").getpixel((2, 2)) == 0
    blue = RenditionSpec(name="whole", box=(999, 999), background=pictures.BLUE)
    assert close_to(opened(made(data, blue).renditions[0]).getpixel((2, 2)), pictures.BLUE)


@pytest.mark.parametrize("colour", [(200, 100, 50), (10, 180, 90)])
def test_colours_are_converted_by_the_profile_and_the_profile_dropped(colour: tuple[int, int, int]) -> None:
    image = opened(made(pictures.wide_gamut_jpeg(colour), WHOLE).renditions[0])
    assert close_to(image.getpixel((30, 20)), (colour[1], colour[0], colour[2]), 4)
    assert "icc_profile" not in image.info


def test_a_profile_with_transparency_and_one_of_another_kind_of_pixels() -> None:
    profile = pictures.swapped_profile()
    clear = pictures.encoded(Image.new("RGBA", (40, 40), (200, 100, 50, 128)), "PNG", icc_profile=profile)
    pixel = opened(made(clear, WEBP).renditions[0]).getpixel((20, 20))
    assert close_to(pixel, (100, 200, 50, 128), 6)
    grey = pictures.encoded(Image.new("L", (40, 40), 90), "JPEG", icc_profile=profile)
    assert close_to(opened(made(grey, WHOLE).renditions[0]).convert("RGB").getpixel((20, 20)), (90, 90, 90), 4)


@pytest.mark.parametrize("profile", [bytes(200), b"x", pictures.srgb_profile()[:300]])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_broken_profile_is_ignored(mode: str, profile: bytes) -> None:
    data = pictures.encoded(pictures.quarters(mode=mode), "JPEG", icc_profile=profile, quality=95)
    image = opened(made(data, WHOLE).renditions[0])
    assert image.mode == ("L" if mode == "L" else "RGB")
    if mode != "L":
        assert_upright(image)


def test_cmyk_becomes_rgb_and_is_not_inverted() -> None:
    for output in (WHOLE, WEBP):
        data = pictures.encoded(pictures.quarters(mode="CMYK"), "JPEG", quality=95)
        assert_upright(opened(made(data, output).renditions[0]))


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG", "AVIF"])
def test_of_an_animation_the_first_frame_counts(form: str) -> None:
    frames = [Image.new("RGB", (60, 30), colour) for colour in (pictures.BLUE, pictures.RED, pictures.GREEN)]
    data = pictures.encoded(frames[0], form, save_all=True, append_images=frames[1:], duration=100)
    result = made(data, WHOLE)
    assert (result.width, result.height) == (60, 30)
    assert close_to(opened(result.renditions[0]).getpixel((30, 15)), pictures.BLUE)


def test_of_a_multi_picture_jpeg_the_first_picture_counts() -> None:
    data = pictures.encoded(pictures.quarters(), "MPO", save_all=True, append_images=[pictures.quarters(20, 20)])
    result = made(data, WHOLE)
    assert (result.format, result.width, result.height) == (SourceFormat.JPEG, 64, 40)


@pytest.mark.parametrize("output", [WHOLE, WEBP, AVIF])
def test_no_metadata_is_carried_over(output: RenditionSpec) -> None:
    data = pictures.jpeg(
        comment=b"<script>alert(1)</script>",
        exif=pictures.oriented_exif(1, gps=True),
        xmp=b"<x:xmpmeta>secret</x:xmpmeta>",
        icc_profile=pictures.srgb_profile(),
    )
    rendition = made(data + b"<script>after the end</script>", output).renditions[0]
    for trace in (b"script", b"Exif", b"SecretCameraMaker", b"xmpmeta", b"ICC"):
        assert trace not in rendition.data
    assert not opened(rendition).getexif()


def test_a_specification_says_what_is_wrong_with_it() -> None:
    for wrong, field in (
        ({"box": (0, 10)}, "box"),
        ({"box": (10, 10), "quality": 0}, "quality"),
        ({"box": (10, 10), "background": (0, 0, 256)}, "background"),
    ):
        with pytest.raises(ValueError, match=field):
            RenditionSpec(name="bad", **wrong)
