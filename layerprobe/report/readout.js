"use strict";

// What all figures share: the box that tells what is pointed at, colours of layers, axes, and labels that do not
// overlap.
Object.assign(window.layerprobe, (() => {
  const { data, state, text, html, cell, labels, epochPlace, when } = window.layerprobe;
  const box = document.getElementById("readout");

  // All that is known of a number, a line each, the first one for the eye.
  const lines = (run, metric, split, layer, epoch) => {
    const found = cell(run, metric, split, layer, epoch);
    if (!found) return [];
    const { value, low, high, remark } = found;
    const own = run.layers[layer];
    return [
      value === null ? `no ${metric}` : `${text.shown(value, metric)}${text.unit(metric)}`,
      `${metric} on ${window.layerprobe.called(run, split)} = ${text.full(value) || "no valid number"}`,
      low === null ? null : `interval ${text.full(low)} to ${text.full(high)}`,
      `${own.layer}, pool ${own.pool}, post-processing ${own.post_processing}, ${own.similarity}`,
      `${run.name}, ${when(run, run.epochs[epoch])}`,
      remark || null,
    ].filter((line) => line !== null);
  };

  // Show the box beside a point of the window; the first line is large.
  const show = ([first, ...others], x, y) => {
    box.replaceChildren(html("strong", {}, first), ...others.map((line) => html("span", {}, line)));
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    const left = x + 14 + width < innerWidth - 4 ? x + 14 : Math.max(4, x - 14 - width);
    const top = Math.min(Math.max(4, y - height - 10), innerHeight - height - 4);
    box.style.left = `${left}px`;
    box.style.top = `${top < y || left > x ? top : y + 14}px`;
  };
  const hide = () => {
    box.hidden = true;
  };
  addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
  });
  addEventListener("scroll", hide, { passive: true });

  // A layer's colour follows its depth in the network of the first run that has it; the embedding layer has one of its
  // own. Further pools and post-processing of a layer have its colour and a broken line.
  const layersOf = new Map();
  for (const run of data.runs) for (const layer of run.layers) if (!layersOf.has(layer.label)) layersOf.set(layer.label, layer);
  const depths = new Map();
  for (const run of data.runs) {
    const names = [...new Set(run.layers.map((layer) => layer.layer))];
    names.forEach((name, i) => depths.has(name) || depths.set(name, names.length > 1 ? (100 * i) / (names.length - 1) : 100));
  }
  const embedded = new Set(data.runs.filter((run) => run.embedding !== null).map((run) => run.layers[run.embedding].layer));
  const postProcessed = (label) => layersOf.get(label).post_processing !== "none";
  const tint = (label) => {
    const name = layersOf.get(label).layer;
    return { class: embedded.has(name) ? "embedding" : "depth", style: `--at:${depths.get(name).toFixed(1)}%` };
  };
  const dashes = (label) => {
    const place = labels.filter((other) => layersOf.get(other).layer === layersOf.get(label).layer).indexOf(label);
    return place ? ["6 2.5", "2 2.5", "8 2 2 2"][(place - 1) % 3] : null;
  };

  const ticks = (low, high, count) => {
    const rough = (high - low) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(rough || 1));
    const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= rough * 0.999) || 1;
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) found.push(i * step);
    return found;
  };
  // Limits of an axis for some values: round numbers that enclose all of them.
  const limits = (values, metric) => {
    const unit = window.layerprobe.percent(metric) ? 100 : 1;
    if (!values.length) return [0, 1];
    const low = Math.min(...values) * unit, high = Math.max(...values) * unit;
    const marks = ticks(low, high > low ? high : low + 8, 8), step = marks.length > 1 ? marks[1] - marks[0] : 1;
    const ends = [Math.floor(low / step + 1e-9) * step, Math.ceil(high / step - 1e-9) * step];
    if (ends[1] - ends[0] < step / 2) ends[unit === 100 && high >= 100 ? 0 : 1] += unit === 100 && high >= 100 ? -step : step;
    return ends.map((end) => end / unit);
  };

  // Move positions apart as little as possible (least squares), in their order: neighbours in descending order are
  // replaced by their mean (pool adjacent violators), as plots/figure.py does.
  const spread = (positions, least, low, high) => {
    const order = positions.map((_, i) => i).sort((a, b) => positions[a] - positions[b] || a - b);
    const room = Math.max(0, high - low), step = Math.min(least, order.length > 1 ? room / (order.length - 1) : least);
    const pools = [];
    order.forEach((i, place) => {
      pools.push([positions[i] - place * step, 1]);
      while (pools.length > 1 && pools[pools.length - 2][0] >= pools[pools.length - 1][0]) {
        const [mean, count] = pools.pop(), before = pools[pools.length - 1];
        before[0] = (before[0] * before[1] + mean * count) / (before[1] + count);
        before[1] += count;
      }
    });
    const levels = pools.flatMap(([mean, count]) => Array(count).fill(mean));
    const top = high - (order.length - 1) * step, moved = [];
    order.forEach((i, place) => { moved[i] = Math.min(Math.max(levels[place], low), top) + place * step; });
    return moved;
  };

  const measure = document.createElement("canvas").getContext("2d");
  const widthOf = (string, font = "12px system-ui, sans-serif") => {
    measure.font = font;
    return measure.measureText(string).width;
  };
  // A label of a layer shortened to a width: first its post-processing at the end, then the layer's name at its beginning, so
  // that its pool stays.
  const short = (label, width, font) => {
    const fits = (text) => widthOf(text, font) <= width;
    if (fits(label)) return label;
    const base = label.split(/[/~]/)[0], name = base.split("@")[0], more = base.length < label.length ? "…" : "";
    for (let end = label.length - 1; end >= base.length && more; end--) if (fits(label.slice(0, end) + more)) return label.slice(0, end) + more;
    for (let from = 1; from < name.length; from++) if (fits(`…${base.slice(from)}${more}`)) return `…${base.slice(from)}${more}`;
    return `…${base.slice(name.length - 1)}${more}`;
  };

  // The runs that are shown, each with its place.
  const shownRuns = () => state.get("runs").map((i) => data.runs[i]);
  const placeOf = (run, label) => run.layers.findIndex((layer) => layer.label === label);

  // Draw again when the state, the width or the medium changes. Printing gives every figure the width of a sheet.
  const SHEET = 700;
  let printing = false;
  const drawings = [];
  // Lay figures out in columns of one width; says how many and how wide they are.
  const GAP = 28;
  const columns = (place, count, least) => {
    const width = printing ? SHEET : Math.max(240, place.clientWidth);
    const found = Math.max(1, Math.min(count, Math.floor((width + GAP) / (least + GAP))));
    place.style.gridTemplateColumns = `repeat(${found}, minmax(0, 1fr))`;
    return { count: found, width: Math.floor((width - GAP * (found - 1)) / found) };
  };
  // Arrow keys over a figure of a run: left and right choose the epoch, up and down the layer that stands out.
  const stepped = (event, run, among) => {
    const across = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    const down = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (across === undefined && down === undefined) return false;
    event.preventDefault();
    const step = (list, now, by) => list[Math.min(Math.max(now + by, 0), list.length - 1)];
    if (across) state.set("epoch", step(run.epochs, epochPlace(run, state.get("epoch")), across));
    const own = run.layers.map((layer) => layer.label).filter((label) => among.includes(label));
    if (down && own.length) state.set("layer", step(own, own.indexOf(state.get("layer")), down));
    return true;
  };
  const drawn = (keys, draw) => {
    drawings.push(draw);
    for (const key of keys) state.on(key, draw);
    draw();
  };
  let last = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== last) drawings.forEach((draw) => draw());
    last = innerWidth;
  });
  const medium = (value) => () => {
    printing = value;
    document.querySelectorAll("#made details").forEach((one) => {
      if (value) one.dataset.was = one.open;
      one.open = value || one.dataset.was === "true";
    });
    drawings.forEach((draw) => draw());
  };
  addEventListener("beforeprint", medium(true));
  addEventListener("afterprint", medium(false));

  return {
    readout: { lines, show, hide }, tint, dashes, postProcessed, ticks, limits, spread, widthOf, short, shownRuns,
    placeOf, columns, stepped, drawn, layersOf,
  };
})());
