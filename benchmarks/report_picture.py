"""The picture of a report for the README: its first screen, in Chromium, light, at desktop width.

python -m benchmarks.report_picture RUN [--kind public] [--out docs/images/report.png]
"""

import argparse
import shutil
import tempfile
from pathlib import Path

from uedp.report.page import report

WIDTH, HEIGHT = 1120, 1180


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--kind", choices=("internal", "public"), default="public")
    parser.add_argument("--out", type=Path, default=Path("docs/images/report.png"))
    options = parser.parse_args()
    made = report([options.run], options.kind)
    if made.failed:
        raise SystemExit(f"{options.run}: does not verify")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        made.write(page)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        _photograph(page, options.out)
    print(f"{options.out}: {options.out.stat().st_size / 1000:.0f} kB")


def _photograph(page: Path, out: Path) -> None:
    from PIL import Image
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        path = shutil.which("chromium") or shutil.which("google-chrome")
        chromium = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        opened = chromium.new_page(
            viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light"
        )
        opened.goto(page.as_uri())
        opened.screenshot(path=out)
        chromium.close()
    # few colours: a quarter of the size, and no difference to the eye
    with Image.open(out) as picture:
        reduced = picture.convert("RGB").quantize(64)
    reduced.save(out, optimize=True)


if __name__ == "__main__":
    main()
