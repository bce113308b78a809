"""Draws the pictures of the documentation from the package itself: ``python docs/make_images.py``."""

from pathlib import Path

from ambilm.demo.figures import layouts_figure

if __name__ == "__main__":
    folder = Path(__file__).parent / "images"
    folder.mkdir(exist_ok=True)
    layouts_figure().savefig(folder / "layouts.png", dpi=130, metadata={"Software": None})
    print(folder / "layouts.png")
