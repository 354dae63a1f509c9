"use strict";

// The bar that chooses metric, epoch, layers and runs, and the start of the page.
(() => {
  const P = window.layerprobe;
  const { data, state, html, svg } = P;
  const bar = document.getElementById("bar");
  bar.hidden = false;

  const metric = () => {
    if (P.metrics.length < 2) return;
    const select = html("select", { id: "metric", onchange: () => state.set("metric", select.value) }, ...P.metrics.map((name) => html("option", { value: name, selected: name === state.get("metric") }, name)));
    bar.append(html("label", {}, "Metric ", select));
    state.on("metric", (name) => { select.value = name; });
  };

  const epoch = () => {
    if (P.epochs.length < 2) return;
    const slider = html("input", { type: "range", id: "epoch", min: 0, max: P.epochs.length - 1, step: 1, oninput: () => state.set("epoch", P.epochs[slider.value]) });
    const told = html("output", { for: "epoch" });
    bar.append(html("label", { class: "wide" }, "Epoch ", slider, told));
    const follow = () => {
      slider.value = P.epochs.indexOf(state.get("epoch"));
      slider.setAttribute("aria-valuetext", `epoch ${state.get("epoch")}`);
      told.textContent = state.get("epoch");
    };
    state.on("epoch", follow);
    follow();
  };

  // A list of check boxes that unfolds, those of post-processing in a list of their own; `sets` are names of buttons with what
  // they choose.
  const choice = (key, title, all, sets) => {
    const summary = html("summary", {}), list = html("div", { class: "choices" }), more = html("div", { class: "choices" });
    const boxes = new Map();
    const follow = () => {
      const chosen = state.get(key);
      summary.textContent = `${title}: ${chosen.length} of ${all.length}`;
      for (const [value, input] of boxes) input.checked = chosen.includes(value);
    };
    for (const one of all) {
      const input = html("input", { type: "checkbox", onchange: () => {
        const now = state.get(key), kept = all.map((other) => other.value).filter((value) => (value === one.value ? input.checked : now.includes(value)));
        if (kept.length || key === "layers") state.set(key, kept);
        else input.checked = true; // one run at least stays
      } });
      boxes.set(one.value, input);
      (one.more ? more : list).append(html("label", one.colours || {}, input, one.colours ? svg("svg", { width: 14, height: 10, "aria-hidden": "true" }, svg("path", { class: "line", d: "M0 5H14", "stroke-dasharray": P.dashes(one.value) })) : null, ` ${one.text}`));
    }
    const buttons = html("div", { class: "sets" }, ...sets.map(([name, values]) => html("button", { type: "button", onclick: () => state.set(key, values) }, name)));
    const menu = html("details", { class: "menu", id: `choose-${key}` }, summary, html("div", { class: "unfolded" }, buttons, list,
      more.children.length ? html("details", {}, html("summary", {}, `post-processing: ${more.children.length}`), more) : null));
    bar.append(menu);
    state.on(key, follow);
    follow();
    menu.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !menu.open) return;
      menu.open = false;
      summary.focus();
    });
    document.addEventListener("pointerdown", (event) => {
      if (!menu.contains(event.target)) menu.open = false;
    });
  };

  metric();
  epoch();
  choice("layers", "Layers", P.labels.map((label) => ({ value: label, text: label, colours: P.tint(label), more: P.postProcessed(label) })), [["few", P.few], ["all layers", P.raw],
    ...(P.raw.length < P.labels.length ? [["with post-processing", P.labels]] : []), ["none", []]]);
  if (data.runs.length > 1) choice("runs", "Runs", data.runs.map((run, i) => ({ value: i, text: run.name })), [["all", data.runs.map((_, i) => i)]]);

  P.curves();
  P.map();
  P.table();
  if (P.gallery) P.gallery();
  if (P.projection) P.projection();
  P.classes();
  P.resume();
})();
