"use strict";

// Every layer in a row, in the order of the network: the gap at each epoch in colours, and beside it train and test at
// the epoch that is chosen.
window.layerprobe.map = () => {
  const P = window.layerprobe;
  const { data, state, text, html, svg, cell, readout } = P;
  const place = document.getElementById("map-runs");
  document.getElementById("map").hidden = false;
  const TOP = 30, BOTTOM = 36;

  const rowsOf = (run, metric) => P.chosenLayers(run)
    .filter((layer) => P.splits(run, metric).some((split) => run.epochs.some((_, e) => cell(run, metric, split, layer.i, e))));
  const gapsOf = (runs, metric) => runs.flatMap((run) => rowsOf(run, metric).flatMap((layer) =>
    run.epochs.map((_, e) => P.gap(run, metric, layer.i, e)).filter((gap) => gap !== null)));

  // The cells are drawn once: another epoch only moves the frame around its column.
  const drawnCells = new Map();
  const cellsOf = (run, rows, { x0, width, row }, { metric, epochs, largest }) => {
    const key = JSON.stringify([data.runs.indexOf(run), rows.map((layer) => layer.i), x0, width, row, metric, epochs, largest]);
    if (drawnCells.has(key)) return drawnCells.get(key);
    const wide = width / epochs.length, group = svg("g", {});
    rows.forEach((layer, j) => epochs.forEach((epoch, column) => {
      const e = run.epochs.indexOf(epoch), gap = e < 0 ? null : P.gap(run, metric, layer.i, e);
      const share = gap === null ? 0 : (100 * Math.abs(gap)) / (largest || 1);
      const at = { x: (x0 + column * wide).toFixed(1), y: TOP + j * row, width: (wide > 10 ? wide - 1 : wide + 0.3).toFixed(1), height: row - 1 };
      group.append(svg("rect", { ...at, class: gap === null ? "none" : gap < 0 ? "under" : "over", style: `--at:${share.toFixed(1)}%` }));
      if (gap === null || wide < 21) return;
      const shown = text.gap(gap, metric, wide < 34 ? 0 : 1).replace(/^\+|^−(?=0$)/, "");
      group.append(svg("text", { class: `number${share > 70 ? " strong" : share > 52 ? " middle" : ""}${wide < 28 ? " small" : ""}`, x: x0 + (column + 0.5) * wide, y: TOP + j * row + row / 2 + 3.5, "text-anchor": "middle" }, shown));
    }));
    if (drawnCells.size > 50) drawnCells.clear();
    drawnCells.set(key, group);
    return group;
  };

  const heat = (run, rows, frame, shared) => {
    const { x0, width, row } = frame, { epochs } = shared, wide = width / epochs.length, bottom = TOP + rows.length * row;
    const group = svg("g", { class: "heat" }, cellsOf(run, rows, frame, shared));
    group.append(svg("text", { class: "split", x: x0, y: 13 }, `${P.brief(run, "train")} − test${width > 210 ? " by epoch" : ""}`));
    const now = epochs.indexOf(run.epochs[P.epochPlace(run, state.get("epoch"))]), every = Math.max(1, Math.ceil((26 * epochs.length) / width));
    epochs.forEach((epoch, column) => {
      const near = now >= 0 && column !== now && Math.abs(column - now) < every;
      if (column === now || (column % every === 0 && !near)) group.append(svg("text", { class: `tick${column === now ? " chosen" : ""}`, x: x0 + (column + 0.5) * wide, y: bottom + 14, "text-anchor": "middle" }, epoch));
    });
    if (now >= 0) group.append(svg("rect", { class: "now", x: x0 + now * wide - 1, y: TOP - 1.5, width: wide + 1, height: rows.length * row + 2 }));
    group.append(svg("text", { class: "tick", x: x0 + width / 2, y: bottom + 30, "text-anchor": "middle" }, "epoch"));
    return group;
  };

  const sign = (split, x, y) => (split === "validation"
    ? svg("path", { class: "validation", d: `M${x} ${y - 4}V${y + 4}` })
    : svg("circle", { class: split, cx: x, cy: y, r: split === "test" ? 4 : 3.5 }));

  const dots = (run, rows, frame, { metric, domain }) => {
    const { x0, width, row } = frame, bottom = TOP + rows.length * row, unit = P.percent(metric) ? 100 : 1;
    const x = (value) => x0 + ((value - domain[0]) / (domain[1] - domain[0])) * width, group = svg("g", { class: "dots" });
    const epoch = P.epochPlace(run, state.get("epoch")), splits = P.splits(run, metric);
    const title = P.frozen ? metric : run.weights ? `${metric}, ${run.weights}` : `${metric} at epoch ${run.epochs[epoch] ?? "–"}`, fits = P.widthOf(title, "600 12px system-ui, sans-serif") < width;
    group.append(svg("text", { class: "split", x: fits ? x0 : x0 + width + 10, y: 13, "text-anchor": fits ? "start" : "end" }, title));
    for (const tick of P.ticks(domain[0] * unit, domain[1] * unit, width / 52)) {
      group.append(svg("line", { class: "grid", x1: x(tick / unit), x2: x(tick / unit), y1: TOP, y2: bottom }),
        svg("text", { class: "tick", x: x(tick / unit), y: bottom + 14, "text-anchor": "middle" }, `${Number(tick.toPrecision(6))}`));
    }
    group.append(svg("text", { class: "tick", x: x0 + width / 2, y: bottom + 30, "text-anchor": "middle" }, `${metric}${P.percent(metric) ? " in %" : ""}`));
    rows.forEach((layer, j) => {
      const y = TOP + (j + 0.5) * row, at = Object.fromEntries(splits.map((split) => [split, cell(run, metric, split, layer.i, epoch)]));
      const known = (split) => at[split] && at[split].value !== null;
      if (known("train") && known("test")) group.append(svg("line", { class: "gap", x1: x(at.train.value), x2: x(at.test.value), y1: y, y2: y }));
      for (const split of splits.filter(known)) {
        const { value, low, high } = at[split];
        if (split === "test" && low !== null && high !== null) group.append(svg("line", { class: "whisker", x1: x(low), x2: x(high), y1: y, y2: y }));
        group.append(sign(split, x(value), y));
      }
    });
    return group;
  };

  const figure = (run, shared) => {
    const { metric, width } = shared, rows = rowsOf(run, metric), holder = html("figure", {});
    place.append(holder);
    if (data.runs.length > 1) holder.append(html("h3", {}, run.name));
    if (!rows.length) {
      holder.append(html("p", { class: "plain" }, P.chosenLayers(run).length ? `no ${metric}` : "No layer chosen above is measured here."));
      return;
    }
    const mapped = run.epochs.length > 1 && rows.some((layer) => run.epochs.some((_, e) => P.gap(run, metric, layer.i, e) !== null));
    const widest = Math.max(...rows.map((layer) => P.widthOf(layer.label, "700 12px system-ui, sans-serif"))) + 12;
    const named = Math.min(widest, width * (mapped ? 0.27 : 0.45)), row = shared.row;
    const rest = width - named - 10, heatWide = mapped ? Math.min(rest * 0.62, shared.epochs.length * 48) : 0;
    const dotsAt = named + heatWide + (mapped ? 26 : 4), dotsWide = Math.min(width - dotsAt - 12, 620), height = TOP + rows.length * row + BOTTOM;
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
      "aria-label": `Each layer of ${run.name}: ${P.brief(run, "train")} minus test at every epoch, and ${metric} at the chosen epoch; the numbers are in the table` });
    rows.forEach((layer, j) => {
      const main = layer.label === state.get("layer");
      if (main) picture.append(svg("rect", { class: "row", x: 0, y: TOP + j * row, width, height: row - 1 }));
      picture.append(svg("text", { class: `name${main ? " main" : ""}`, x: named - 8, y: TOP + (j + 0.5) * row + 4, "text-anchor": "end" }, P.short(layer.label, named - 10, main ? "700 12px system-ui, sans-serif" : undefined)));
    });
    if (mapped) picture.append(heat(run, rows, { x0: named, width: heatWide, row }, shared));
    picture.append(dots(run, rows, { x0: dotsAt, width: dotsWide, row }, shared));

    const found = (event) => {
      const area = picture.getBoundingClientRect(), scale = area.width / width;
      const x = (event.clientX - area.left) / scale, layer = rows[Math.floor(((event.clientY - area.top) / scale - TOP) / row)];
      if (!layer) return null;
      const epoch = x >= named && x < named + heatWide ? shared.epochs[Math.floor(((x - named) / heatWide) * shared.epochs.length)] : null;
      return { layer, e: epoch === null ? P.epochPlace(run, state.get("epoch")) : run.epochs.indexOf(epoch) };
    };
    holder.append(html("div", { class: "scene", id: `map-${data.runs.indexOf(run)}`, tabindex: 0, role: "group",
      "aria-label": `Layers of ${run.name}: arrow keys choose epoch and layer`, onblur: readout.hide, onpointerleave: readout.hide,
      onkeydown: (event) => keys(event, run, rows, metric),
      onpointermove: (event) => {
        const hit = found(event);
        if (hit && hit.e >= 0) readout.show(told(run, hit.layer, hit.e, metric), event.clientX, event.clientY);
        else readout.hide();
      },
      onclick: (event) => {
        const hit = found(event);
        if (!hit || hit.e < 0) return;
        state.set("layer", hit.layer.label);
        state.set("epoch", run.epochs[hit.e]);
      },
    }, picture));
  };

  const told = (run, layer, e, metric) => {
    const gap = P.gap(run, metric, layer.i, e);
    const each = P.splits(run, metric).map((split) => {
      const one = cell(run, metric, split, layer.i, e);
      return one && `${metric} on ${P.called(run, split)} = ${text.full(one.value) || "no valid number"}${one.low === null ? "" : `, interval ${text.full(one.low)} to ${text.full(one.high)}`}`;
    }).filter(Boolean);
    return [`${layer.label}: ${gap === null ? "no gap" : `gap ${text.gap(gap, metric)}`}`, ...each,
      `${layer.layer}, pool ${layer.pool}, post-processing ${layer.post_processing}, ${layer.similarity}`, `${run.name}, ${P.when(run, run.epochs[e])}`];
  };

  const keys = (event, run, rows, metric) => {
    if (!P.stepped(event, run, rows.map((layer) => layer.label))) return;
    const scene = document.getElementById(`map-${data.runs.indexOf(run)}`), area = scene.getBoundingClientRect();
    scene.focus({ preventScroll: true });
    const layer = rows.find((one) => one.label === state.get("layer")), e = P.epochPlace(run, state.get("epoch"));
    if (layer) readout.show(told(run, layer, e, metric), area.left + area.width / 2, area.top + 30);
  };

  const key = (largest, metric, better) => {
    const scale = svg("svg", { class: "scale", width: 132, height: 12, "aria-hidden": "true" });
    for (let i = 0; i < 11; i++) scale.append(svg("rect", { class: i < 5 ? "under" : "over", style: `--at:${Math.abs(i - 5) * 20}%`, x: i * 12, y: 0, width: 11, height: 12 }));
    const ends = [-largest, largest].map((end) => text.gap(end, metric));
    return html("span", { class: "key" }, `test better ${ends[0]} `, scale, ` ${ends[1]} ${better} better${P.percent(metric) ? ", in points" : ""}`);
  };

  // A split's name; where it differs, each with its runs.
  const named = (runs, split) => {
    const names = [...new Set(runs.map((run) => P.called(run, split)))];
    const of = (name) => runs.filter((run) => P.called(run, split) === name).map((run) => run.name).join(", ");
    return names.length < 2 ? names[0] : names.map((name) => `${name} (${of(name)})`).join(" or ");
  };

  P.drawn(["runs", "layers", "epoch", "metric", "layer"], () => {
    const runs = P.shownRuns(), metric = state.get("metric"), focused = document.activeElement && document.activeElement.id;
    const gaps = gapsOf(runs, metric), largest = Math.max(0, ...gaps.map(Math.abs));
    const values = runs.flatMap((run) => rowsOf(run, metric).flatMap((layer) => P.splits(run, metric).flatMap((split) =>
      ["value", ...(split === "test" ? ["low", "high"] : [])].flatMap((name) => (run.scores[metric][split][name] || { [layer.i]: [] })[layer.i]))))
      .filter((value) => value !== null);
    const shared = { metric, largest, domain: P.limits(values, metric), row: runs.length > 1 ? 17 : 21,
      epochs: [...new Set(runs.flatMap((run) => run.epochs))].sort((a, b) => a - b) };
    place.replaceChildren();
    const { width } = P.columns(place, runs.length, 300);
    for (const run of runs) figure(run, { ...shared, width });
    if (focused && focused.startsWith("map-")) document.getElementById(focused)?.focus({ preventScroll: true });
    const both = gaps.length > 0, interval = P.intervalOf(metric);
    document.getElementById("map-title").textContent = both && shared.epochs.length > 1 ? "Where the gap opens" : "Layer by layer";
    document.getElementById("map-caption").replaceChildren(
      ...(both && shared.epochs.length > 1 ? [key(largest, metric, P.eachBrief(runs, "train"))] : []),
      ...["train", "validation", "test"].map((split) => [split, runs.filter((run) => P.splits(run, metric).includes(split))]).filter(([, own]) => own.length).map(([split, own]) =>
        html("span", { class: "key" }, svg("svg", { class: "dots", width: 26, height: 12, "aria-hidden": "true" },
          ...(split === "test" && interval ? [svg("line", { class: "whisker", x1: 1, x2: 25, y1: 6, y2: 6 })] : []), sign(split, 13, 6)),
          split === "test" && interval ? ` test, ${interval}` : ` ${named(own, split)}`)),
    );
  });
};
