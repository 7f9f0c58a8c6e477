"""Draws COUNT JPEG files of about 320 x 240 pixels below FOLDER, in ten classes: draw_photos.py FOLDER COUNT

Smooth shades with some noise: a file has about as many bytes as a photograph (20 KB).
"""

import sys
from pathlib import Path

import numpy
from PIL import Image


def draw(generator, number):
    size = (320 + number % 7, 240 + number % 5)
    shades = generator.integers(0, 256, (6 + number % 10, 8, 3), dtype=numpy.uint8)
    pixels = numpy.asarray(Image.fromarray(shades).resize(size, Image.BICUBIC), dtype=numpy.int16)
    pixels = pixels + generator.integers(-12, 13, pixels.shape, dtype=numpy.int16)
    return Image.fromarray(pixels.clip(0, 255).astype(numpy.uint8))


folder, count = Path(sys.argv[1]), int(sys.argv[2])
generator = numpy.random.default_rng(0)
for number in range(count):
    place = folder / f"class-{number % 10}"
    place.mkdir(parents=True, exist_ok=True)
    draw(generator, number).save(place / f"{number:05}.jpg", quality=85)
