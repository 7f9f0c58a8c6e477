#!/usr/bin/env python3
"""Draws the dashboard and the report of a real training: dashboard.svg and report.png. Needs tmux and `everburn`.

The first argument is the binary, the second the folder of the pictures (both optional):

    python3 docs/pictures/dashboard.py everburn docs/pictures

The script starts `everburn train mnist --ranks 2` in a terminal of tmux, captures the screen with its colours in the
second of its three epochs, and waits for the end. A headless Chromium draws the top of the run's report; without one, the
picture of the report stays as it was.
"""

import html
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unicodedata

COLUMNS, ROWS = 120, 34
WIDTH, HEIGHT = 7.2, 15  # of a cell, in pixels
BACKGROUND, FOREGROUND = "#16161e", "#c8ccd8"
BASIC = ["#16161e", "#f7768e", "#9ece6a", "#e0af68", "#7aa2f7", "#bb9af7", "#7dcfff", "#c8ccd8"]
BRIGHT = ["#565f89", "#ff899d", "#b9f27c", "#ffc777", "#82aaff", "#c099ff", "#86e1fc", "#ffffff"]


def tmux(server, *arguments):
    return subprocess.run(["tmux", "-L", server, *arguments], check=True, capture_output=True, text=True).stdout


def picture(binary, folder):
    """The screen of a training, as text with ANSI colours; the picture of its report goes into the folder."""
    server = f"everburn-picture-{os.getpid()}"
    with tempfile.TemporaryDirectory() as work:
        command = f"cd {work} && {binary} train mnist --ranks 2 --run-dir runs/mnist; sleep 60"
        tmux(server, "-f", "/dev/null", "new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), command)
        try:
            screen = wait_for(server, lambda plain: re.search(r"2/3|Epoch\s*:?\s*2\b", plain))
            report = os.path.join(work, "runs/mnist/report.html")
            wait_for(server, lambda _: os.path.exists(report))
            draw_report(report, os.path.join(folder, "report.png"))
            return screen
        finally:
            subprocess.run(["tmux", "-L", server, "kill-server"], check=False)
            time.sleep(3)


def wait_for(server, is_there):
    """The screen a few seconds after `is_there` says yes to its text."""
    deadline = time.monotonic() + 300
    plain = ""
    while time.monotonic() < deadline:
        time.sleep(1)
        plain = re.sub(r"\x1b\[[0-9;:]*m", "", tmux(server, "capture-pane", "-e", "-p"))
        if is_there(plain):
            time.sleep(5)
            return tmux(server, "capture-pane", "-e", "-p")
    sys.exit(f"the training has not come so far in 5 minutes; the screen:\n{plain}")


def draw_report(report, file):
    browser = next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome", "chrome"])), None)
    if browser is None:
        print(f"no Chromium: {file} is not drawn anew", file=sys.stderr)
        return
    options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1100,888"]
    subprocess.run([browser, *options, f"--screenshot={os.path.abspath(file)}", f"file://{report}"], check=True)


def of_256(number):
    if number < 8:
        return BASIC[number]
    if number < 16:
        return BRIGHT[number - 8]
    if number < 232:
        number -= 16
        levels = [0, 95, 135, 175, 215, 255]
        return "#%02x%02x%02x" % (levels[number // 36], levels[number // 6 % 6], levels[number % 6])
    grey = 8 + 10 * (number - 232)
    return "#%02x%02x%02x" % (grey, grey, grey)


def apply(style, codes):
    """The style after the codes of one escape sequence."""
    style, codes = dict(style), [int(code or 0) for code in re.split("[;:]", codes)]
    while codes:
        code = codes.pop(0)
        if code == 0:
            style = {}
        elif code in (1, 3, 7):
            style[{1: "bold", 3: "italic", 7: "reverse"}[code]] = True
        elif code in (22, 23, 27):
            style.pop({22: "bold", 23: "italic", 27: "reverse"}[code], None)
        elif code in (38, 48):
            if codes.pop(0) == 5:
                colour = of_256(codes.pop(0))
            else:
                colour, codes = "#%02x%02x%02x" % tuple(codes[:3]), codes[3:]
            style["front" if code == 38 else "back"] = colour
        elif code in (39, 49):
            style.pop("front" if code == 39 else "back", None)
        elif 30 <= code <= 37 or 90 <= code <= 97:
            style["front"] = (BASIC if code < 90 else BRIGHT)[code % 10]
        elif 40 <= code <= 47 or 100 <= code <= 107:
            style["back"] = (BASIC if code < 100 else BRIGHT)[code % 10]
    return style


def runs(line):
    """Pieces of a line as (column, text, style)."""
    found, style, column = [], {}, 0
    for piece in re.split(r"(\x1b\[[0-9;:]*m)", line):
        if piece.startswith("\x1b["):
            style = apply(style, piece[2:-1])
        elif piece:
            found.append((column, piece, style))
            column += sum(2 if unicodedata.east_asian_width(c) == "W" else 1 for c in piece)
    return found


def draw(screen):
    lines = screen.rstrip("\n").split("\n")
    width, height = COLUMNS * WIDTH + 20, len(lines) * HEIGHT + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        'aria-label="The dashboard of a training on two ranks" font-size="12" '
        "font-family=\"'DejaVu Sans Mono',Menlo,Consolas,monospace\">",
        f'<rect width="100%" height="100%" rx="6" fill="{BACKGROUND}"/>',
    ]
    for row, line in enumerate(lines):
        y = 10 + row * HEIGHT
        for column, text, style in runs(line):
            front, back = style.get("front", FOREGROUND), style.get("back")
            if style.get("reverse"):
                front, back = back or BACKGROUND, front
            x = 10 + column * WIDTH
            length = len(text) * WIDTH
            if back and back != BACKGROUND:
                parts.append(f'<rect x="{x:g}" y="{y}" width="{length:g}" height="{HEIGHT}" fill="{back}"/>')
            stripped = text.strip(" ")
            if not stripped:
                continue
            x += (len(text) - len(text.lstrip(" "))) * WIDTH
            bold = ' font-weight="bold"' if style.get("bold") else ""
            parts.append(
                f'<text x="{x:g}" y="{y + 11}" fill="{front}"{bold} textLength="{len(stripped) * WIDTH:g}" '
                f'xml:space="preserve">{html.escape(stripped)}</text>'
            )
    return "\n".join([*parts, "</svg>", ""])


def main():
    binary, folder = (sys.argv[1:] + ["everburn", "docs/pictures"][len(sys.argv) - 1 :])[:2]
    drawn = draw(picture(os.path.abspath(binary) if os.path.exists(binary) else binary, folder))
    with open(os.path.join(folder, "dashboard.svg"), "w", encoding="utf-8") as file:
        file.write(drawn)


if __name__ == "__main__":
    main()
