"use strict";

// The data of the page, its state, and numbers as text. Every script shares them as window.layerprobe.
//
// The keys of the state: `runs`, the places of the runs that are shown; `layers`, the labels of the layers that figures
// and the table show, at first all but post-processing; `epoch`, one of the epochs that a run has; `metric`; `layer`, the label of the layer that stands out.
// A value is kept when the page is read again, as it is while a training is watched.
window.layerprobe = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const store = `layerprobe ${location.pathname}`;

  const merged = (lists) => {
    // Every text once. One that the first list lacks follows what precedes it in its own.
    const all = [];
    for (const list of lists) {
      list.forEach((text, i) => {
        if (!all.includes(text)) all.splice(i ? all.indexOf(list[i - 1]) + 1 : 0, 0, text);
      });
    }
    return all;
  };
  const labels = merged(data.runs.map((run) => run.layers.map((layer) => layer.label)));
  const metrics = merged(data.runs.map((run) => run.metrics.map((metric) => metric.name)));
  const epochs = [...new Set(data.runs.flatMap((run) => run.epochs))].sort((a, b) => a - b);
  const few = labels.filter((label) => data.runs.some((run) => run.few.some((i) => run.layers[i].label === label)));
  const raw = labels.filter((label) => data.runs.some((run) => run.layers.some((layer) => layer.label === label && layer.post_processing === "none")));
  const embeddings = data.runs.filter((run) => run.embedding !== null).map((run) => run.layers[run.embedding].label);

  const selected = data.runs.filter((run) => run.selected !== null).map((run) => run.layers[run.selected].label);

  const starts = {
    runs: data.runs.map((_, i) => i),
    layers: raw.length ? labels.filter((label) => raw.includes(label) || selected.includes(label)) : labels,
    epoch: epochs[epochs.length - 1],
    metric: metrics.includes(data.metric) ? data.metric : metrics[0],
    layer: selected.length ? selected[0] : embeddings.length ? embeddings[0] : labels[labels.length - 1],
  };
  const possible = { // what of a kept value still means something
    runs: (kept) => kept.every((i) => i < data.runs.length),
    layers: (kept) => kept.every((label) => labels.includes(label)),
    epoch: (kept) => epochs.includes(kept),
    metric: (kept) => metrics.includes(kept),
    layer: (kept) => labels.includes(kept),
  };

  const kept = (() => {
    try {
      const found = JSON.parse(sessionStorage.getItem(store)) || {};
      for (const [key, fits] of Object.entries(possible)) if (key in found && !fits(found[key])) delete found[key];
      return found;
    } catch {
      return {}; // a browser may refuse to keep anything
    }
  })();
  const listeners = {};
  const state = {
    get: (key) => (key in kept ? kept[key] : starts[key]),
    set: (key, value) => {
      kept[key] = value;
      try {
        sessionStorage.setItem(store, JSON.stringify(kept));
      } catch {} // as above
      for (const listener of listeners[key] || []) listener(value);
    },
    on: (key, listener) => (listeners[key] ||= []).push(listener),
  };

  // Where a reader was when the page was read again.
  addEventListener("pagehide", () => {
    state.set("place", { top: scrollY, focus: document.activeElement && document.activeElement.id });
  });
  const resume = () => {
    const place = state.get("place");
    if (!place) return;
    const focused = place.focus && document.getElementById(place.focus);
    if (focused) focused.focus({ preventScroll: true });
    if (!location.hash) scrollTo(0, place.top);
  };

  // Python's f"{x:.{digits}f}": a tie goes to the even digit, while toFixed takes the larger one.
  const fixed = (x, digits) => {
    const size = Math.abs(x), exact = size.toFixed(60), cut = exact.length - 60 + digits;
    const tie = /^50*$/.test(exact.slice(cut)) && "02468".includes(exact.slice(0, cut).replace(/\.$/, "").slice(-1));
    return (x < 0 ? "-" : "") + (tie ? exact.slice(0, cut).replace(/\.$/, "") : size.toFixed(digits));
  };
  const plain = (x) => (Math.abs(x) >= 100 ? fixed(x, 0) : String(Number(x.toPrecision(3)))); // three digits
  const signed = (shown) => (shown.startsWith("-") ? `−${shown.slice(1)}` : `+${shown}`);
  const percent = (name) => data.runs.some((run) => run.metrics.some((one) => one.name === name && one.percent));
  const text = {
    // A value of a metric as tables show it: in percent with one decimal, or with three digits.
    shown: (value, metric) => (value === null ? "–" : percent(metric) ? fixed(100 * value, 1) : plain(value)),
    // train - test with its sign: in points, from the unrounded values.
    gap: (gap, metric, digits = 1) => (gap === null ? "–" : signed(percent(metric) ? fixed(100 * gap, digits) : plain(gap))),
    // A share, and a difference of two with its sign, both in percent.
    share: (share) => (share === null ? "–" : fixed(100 * share, 1)),
    difference: (difference) => (difference === null ? "–" : signed(fixed(100 * difference, 1))),
    // A number as scores.csv has it: Python's repr of a float.
    full: (x) => {
      if (x === null) return "";
      const size = Math.abs(x);
      if (size !== 0 && (size < 1e-4 || size >= 1e16)) return x.toExponential().replace(/e([+-])(\d)$/, "e$10$2");
      return Number.isInteger(x) ? `${x}.0` : String(x);
    },
    unit: (metric) => (percent(metric) ? " %" : ""),
  };

  // The place of the epoch of a run that is shown for a chosen one: the last one until then; -1 where it is none.
  const epochPlace = (run, epoch) => run.epochs.reduce((found, own, i) => (own <= epoch ? i : found), -1);

  // The numbers of a metric, split, layer and epoch of a run, with the remarks on them; null where it has none.
  const cell = (run, metric, split, layer, epoch) => {
    const table = run.scores[metric] && run.scores[metric][split];
    if (!table || layer < 0 || epoch < 0) return null;
    const at = (name) => (table[name] ? table[name][layer][epoch] : null);
    const note = at("note");
    if (at("value") === null && note === null) return null;
    return { value: at("value"), low: at("low"), high: at("high"), remark: note === null ? "" : run.remarks[note] };
  };
  const gap = (run, metric, layer, epoch) => {
    const [train, test] = ["train", "test"].map((split) => cell(run, metric, split, layer, epoch));
    return train && test && train.value !== null && test.value !== null ? train.value - test.value : null;
  };
  // What the intervals of a metric say; null where none are shown.
  const intervalOf = (metric) => data.runs.flatMap((run) => run.metrics).find((one) => one.name === metric)?.interval || null;
  const splits = (run, metric) => Object.keys(run.scores[metric] || {});
  // A split's name in text, and where there is little room: train is `selection classes` of a run that was not trained on it.
  const called = (run, split) => run.names[split] || split;
  const brief = (run, split) => called(run, split).replace(/ classes$/, "");
  const eachBrief = (runs, split) => [...new Set(runs.map((run) => brief(run, split)))].join(" or ");

  // An element with its attributes; children are elements or text, which is never read as HTML.
  const make = (space) => (tag, attributes = {}, ...children) => {
    const made = space ? document.createElementNS(space, tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
    }
    made.append(...children.filter((child) => child !== null));
    return made;
  };

  // Of many layers chosen a few are in colour, so that curves can be told apart and the gallery is short.
  const MOST = 8;
  const inColour = () => {
    const chosen = state.get("layers"), some = chosen.filter((label) => few.includes(label));
    return chosen.length > MOST && some.length ? some : chosen;
  };
  const chosenLayers = (run) => run.layers.map((layer, i) => ({ ...layer, i })).filter((layer) => state.get("layers").includes(layer.label));

  const frozen = epochs.length === 1 && epochs[0] === 0; // nothing was trained

  // `epoch 20`; `weights of own.pth` of a run that has these alone.
  const when = (run, epoch) => run.weights || `epoch ${epoch}`;

  return {
    data, state, frozen, when, text, labels, metrics, epochs, few, raw, inColour, chosenLayers, percent, epochPlace, cell, gap, intervalOf, splits, called, brief, eachBrief, resume,
    html: make(null), svg: make("http://www.w3.org/2000/svg"),
  };
})();
