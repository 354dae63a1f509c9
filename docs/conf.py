"""The site: `sphinx-build -W docs OUT`. LAYERPROBE_DOCS_EXECUTE=1 runs the tutorials; else stored output shows."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from docs._ext import absent, weights  # noqa: E402 - it lies in the folder that the line above adds
from layerprobe import __version__  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REPOSITORY = "https://github.com/layerprobe/layerprobe"

project = "layerprobe"
author = "The layerprobe developers"
project_copyright = author
version = release = __version__
language = "en"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.doctest",
    "sphinx_design",
    "sphinx_copybutton",
    "docs._ext.classes",
    "docs._ext.generated",
    "docs._ext.mathml",
    "docs._ext.repository",
]
exclude_patterns = ["_build", "_ext", "**.ipynb_checkpoints"]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "html_image"]
myst_heading_anchors = 4
nb_execution_mode = "force" if os.environ.get("LAYERPROBE_DOCS_EXECUTE") == "1" else "off"
nb_execution_in_temp = True  # they write files
nb_execution_raise_on_error = True
nb_execution_timeout = 600  # of a cell, on a busy machine
nb_merge_streams = True
if nb_execution_mode == "force":
    # Where the package is installed, timm downloads nothing.
    hub = Path(tempfile.mkdtemp(prefix="layerprobe-docs-"))
    atexit.register(shutil.rmtree, hub, ignore_errors=True)
    if weights.lay_weights(hub):
        os.environ |= {"HF_HUB_CACHE": str(hub), "HF_HUB_OFFLINE": "1"}
    # The tutorials call `layerprobe` of this environment, whether or not it is activated.
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))

autodoc_mock_imports = absent()
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
# By their names, not by what these stand for.
autodoc_type_aliases = {name: name for name in ("ArrayLike", "BatchOf", "Backend", "Resolve", "Similarity", "Ties")}
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
default_role = "code"  # docstrings mark code by single backticks
doctest_global_setup = "import layerprobe"
# Without a network linkcheck finds nothing; a job that has one runs it.
linkcheck_ignore = [rf"{REPOSITORY}/.*"] if os.environ.get("LAYERPROBE_DOCS_UNPUBLISHED", "1") == "1" else []
linkcheck_timeout = 20

html_theme = "pydata_sphinx_theme"
html_title = f"layerprobe {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_use_index = False
html_show_sourcelink = False
html_show_sphinx = False
html_math_renderer = "mathml"
html_sidebars = {"index": [], "install": [], "quickstart": [], "gallery": []}
html_context = {"default_mode": "auto"}
html_theme_options = {
    "logo": {"text": "layerprobe"},
    "github_url": REPOSITORY,
    "header_links_before_dropdown": 10,
    "navbar_persistent": ["search-button"],
    "navigation_with_keys": False,
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
    "navbar_align": "left",
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_toc_level": 2,
}
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True
copybutton_line_continuation_character = "\\"
suppress_warnings = ["config.cache"]
