"use strict";

// Two layers by test class, in a table that is sorted by any column, and the confusions of classes as pictures: an image,
// and its nearest item, which is of another class. Those that are queries of the gallery open there.
window.layerprobe.classes = () => {
  const P = window.layerprobe;
  const { data, state, text, html } = P;
  if (!data.classes) return;
  const box = document.getElementById("classes-box");
  const rows = data.classes.rows.map(([name, images, a, b, difference, low, high, shrunk]) => ({ name, images, a, b, difference, low, high, shrunk }));
  const names = rows.map((row) => row.name).sort();
  const columns = [
    { key: "name", name: "class", of: (row) => names.indexOf(row.name) },
    { key: "images", name: "images", number: true, of: (row) => row.images },
    { key: "a", name: "A", number: true, of: (row) => row.a },
    { key: "b", name: "B", number: true, of: (row) => row.b },
    { key: "difference", name: "A − B", number: true, of: (row) => row.difference },
    { key: "shrunk", name: "shrunk", number: true, of: (row) => row.shrunk },
  ];

  const line = (row) => html("tr", {},
    html("th", { scope: "row" }, row.name),
    ...[row.images.toLocaleString("en"), text.share(row.a), text.share(row.b)].map((number) => html("td", { class: "number" }, number)),
    html("td", { class: "number" }, text.difference(row.difference),
      row.low === null ? null : html("small", {}, ` ${text.difference(row.low)}\u00a0to ${text.difference(row.high)}`)),
    html("td", { class: "number" }, text.difference(row.shrunk)));

  P.drawn(["sort-classes"], () => {
    const focused = document.activeElement && document.activeElement.id;
    const chosen = state.get("sort-classes") || { key: rows.some((row) => row.shrunk !== null) ? "shrunk" : "difference", up: true };
    const head = P.heads(columns, chosen, (to) => state.set("sort-classes", to), { id: "sort-classes" });
    box.replaceChildren(html("table", {}, html("thead", {}, head), html("tbody", {}, ...P.sorted(rows, columns, chosen).map(line))));
    if (focused && focused.startsWith("sort-classes-")) document.getElementById(focused)?.focus({ preventScroll: true });
  });

  const opener = (item, told) => {
    const key = P.keyOf(item), picture = P.picture(item, told);
    if (!P.isQuery || !P.isQuery(key)) return picture;
    return html("button", { type: "button", title: "open in the gallery", onclick: () => P.openQuery(key) }, picture);
  };
  const file = (item) => (item.id.startsWith(`${item.name}/`) ? item.id.slice(item.name.length + 1) : item.id);
  const example = ([image, nearest]) => html("figure", {},
    image.picture < 0 && nearest.picture < 0 ? null : html("div", { class: "confused" }, opener(image, P.names(image)), html("span", { "aria-hidden": "true" }, "→"),
      html("span", { class: "gallery-wrong" }, html("span", { class: "gallery-frame" }, opener(nearest, `its nearest, wrong: ${P.names(nearest)}`), P.sign(false)))),
    html("figcaption", { class: "gallery-name" }, `${file(image)} → ${file(nearest)}`));
  document.getElementById("confusions-pairs")?.append(...data.classes.confusions.map((pair) => html("li", {},
    html("h3", {}, `${pair.name} → ${pair.nearest}`),
    html("p", { class: "caption" }, pair.text),
    html("div", { class: "examples" }, ...pair.examples.map(example)))));
};
