"""What mkdocs does not do by itself, as hooks: files outside of docs become part of the site, and no page asks others.

Pages link to examples and to files at the root as they lie in the repository, so that the links work there too. The
site gets copies of the examples, and the links are turned to them. A page that would make a browser ask another host
for a script, a style, a font or a picture ends the build.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = re.compile(r"\]\((?:\.\./)+(examples(?:/[\w./]*)?|[A-Z]+\.md)\)")
ASKING = re.compile(
    r"<(?:script|img|iframe|source|audio|video)[^>]*\ssrc=[\"']?(?:https?:)?//[^>]*>"
    r"|<link[^>]*\srel=[\"']?(?:stylesheet|icon|preconnect|preload)[^>]*\shref=[\"']?(?:https?:)?//[^>]*>"
    r"|@import\s+url\([\"']?(?:https?:)?//"
)


def on_files(files: Any, config: Any) -> Any:
    """Adds the examples, as text that a browser shows."""
    for path in sorted((ROOT / "examples").glob("*.py")):
        files.append(File.generated(config, f"examples/{path.name}.txt", abs_src_path=str(path)))
    listing = (ROOT / "examples" / "README.md").read_text().replace(".py)", ".py.txt)")
    files.append(File.generated(config, "examples/index.md", content=listing))
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turns links that leave docs/ to the copies."""
    up = "../" * page.file.src_uri.count("/")

    def turned(found: re.Match[str]) -> str:
        target = found[1]
        if target.endswith(".py"):
            return f"]({up}{target}.txt)"
        return f"]({up}examples/index.md)" if target.startswith("examples") else f"]({up}{target})"

    text = OUTSIDE.sub(turned, markdown)
    return text.replace("](docs/decisions/)", "](index.md#decisions)").replace("](docs/", "](")


def on_post_build(config: Any) -> None:
    """Looks at every page and style of the site."""
    for path in sorted(Path(config.site_dir).rglob("*")):
        if path.suffix in (".html", ".css"):
            found = ASKING.search(path.read_text())
            if found:
                raise PluginError(f"{path.name} asks another host: {found[0][:200]}")
