"""How the page of a report is written: values -> one HTML file without links. Enter by `page.render`.

Values -> one HTML page: its JSON of rows and columns, templates, inline SVG, galleries of images, what is left out of
a page.

Types and words: `Report`, `RunPage`, `ShownChoice`, `Gallery`, `GalleryQuery`, `ShownClasses`; bytes, JPEG, visible
text.
"""
