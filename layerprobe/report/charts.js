"use strict";

// Recall over epochs: a panel for each split with common axes and the layers chosen, few of many in colour and
// named at their ends, the others pale. Runs of one epoch have none.
window.layerprobe.curves = () => {
  const P = window.layerprobe;
  const { data, state, text, html, svg, cell, readout } = P;
  const section = document.getElementById("curves"), place = document.getElementById("curves-runs");
  if (!data.runs.some((run) => run.epochs.length > 1)) return;
  section.hidden = false;
  const LINE = 15, LEFT = 40, TOP = 26, BOTTOM = 34;

  const panelsOf = (run, metric) => {
    const all = P.splits(run, metric);
    return all.includes("train") && all.includes("test") ? ["train", "test"] : all;
  };
  const kinds = { train: "train: classes seen in training", validation: "validation: classes held out", test: "test: classes never seen" };

  const valuesOf = (runs, metric) => runs.flatMap((run) => panelsOf(run, metric).flatMap((split) =>
    ["value", "low", "high"].flatMap((name) => (run.scores[metric][split][name] || []).flat().filter((value) => value !== null))));

  // The points of a curve; `broken` are those that follow an epoch without a valid number. Epochs that were not
  // measured do not break it.
  const points = (run, metric, split, layer) => {
    const found = [];
    let broken = true;
    run.epochs.forEach((epoch, i) => {
      const one = cell(run, metric, split, layer, i);
      if (one && one.value !== null) found.push({ epoch, i, broken, ...one });
      if (one) broken = one.value === null;
    });
    return found;
  };

  // A panel: its group, and the points that a pointer may find.
  const panel = (run, split, frame, { metric, domain, range, marked }) => {
    const { x0, y0, width, height, room } = frame;
    const x = (epoch) => x0 + ((epoch - range[0]) / (range[1] - range[0] || 1)) * width;
    const y = (value) => y0 + height - ((value - domain[0]) / (domain[1] - domain[0])) * height;
    const unit = P.percent(metric) ? 100 : 1, found = [], front = svg("g"), back = svg("g", { class: "pale" });
    const group = svg("g", { class: "panel", "data-split": split }, svg("text", { x: x0, y: y0 - 12, class: "split" }, P.called(run, split) === split && run.held_out && kinds[split] ? kinds[split] : P.called(run, split)));
    for (const tick of P.ticks(domain[0] * unit, domain[1] * unit, height / 42)) {
      group.append(svg("line", { class: "grid", x1: x0, x2: x0 + width, y1: y(tick / unit), y2: y(tick / unit) }),
        svg("text", { class: "tick", x: x0 - 6, y: y(tick / unit) + 4, "text-anchor": "end" }, `${Number(tick.toPrecision(6))}${text.unit(metric)}`));
    }
    for (const tick of P.ticks(range[0], range[1], width / 45).filter(Number.isInteger)) {
      group.append(svg("text", { class: "tick", x: x(tick), y: y0 + height + 16, "text-anchor": "middle" }, tick));
    }
    group.append(svg("text", { class: "tick", x: x0 + width / 2, y: y0 + height + 31, "text-anchor": "middle" }, "epoch"));
    const chance = run.splits[split] && run.splits[split].chance;
    if (metric === "R@1" && chance && chance > domain[0] && chance < domain[1]) {
      group.append(svg("line", { class: "chance", x1: x0, x2: x0 + width, y1: y(chance), y2: y(chance) }),
        svg("text", { class: "tick", x: x0 + width, y: y(chance) - 4, "text-anchor": "end" }, "chance"));
    }
    const at = run.epochs[P.epochPlace(run, state.get("epoch"))];
    if (at !== undefined) group.append(svg("line", { class: "now", x1: x(at), x2: x(at), y1: y0 - 4, y2: y0 + height }));

    const coloured = P.inColour(), ends = [];
    P.chosenLayers(run).forEach((layer) => {
      const i = layer.i, own = points(run, metric, split, i);
      if (!own.length) return;
      const path = own.map((point) => `${point.broken ? "M" : "L"}${x(point.epoch).toFixed(1)} ${y(point.value).toFixed(1)}`).join("");
      const colours = P.tint(layer.label), on = coloured.includes(layer.label), main = layer.label === marked;
      for (const point of own) found.push({ ...point, layer: i, split, on, x: x(point.epoch), y: y(point.value) });
      if (!on && !main) {
        back.append(svg("path", { d: path }));
        return;
      }
      const one = svg("g", { ...colours, class: `${colours.class}${main ? " main" : ""}`, "data-layer": layer.label });
      const banded = own.filter((point) => point.low !== null && point.high !== null);
      if (main && banded.length > 1) {
        const edge = [...banded.map((point) => [point.epoch, point.high]), ...banded.reverse().map((point) => [point.epoch, point.low])];
        one.append(svg("polygon", { class: "band", points: edge.map(([epoch, value]) => `${x(epoch).toFixed(1)},${y(value).toFixed(1)}`).join(" ") }));
      }
      one.append(svg("path", { class: "line", d: path, "stroke-dasharray": P.dashes(layer.label) }));
      const now = own.find((point) => point.epoch === at);
      if (now || own.length === 1) one.append(svg("circle", { class: "dot", cx: x((now || own[0]).epoch), cy: y((now || own[0]).value), r: main ? 4 : 3 }));
      if (main) front.append(one);
      else front.prepend(one);
      const last = own[own.length - 1];
      ends.push({ label: layer.label, x: x(last.epoch), y: y(last.value), value: last.value, colours, main });
    });
    const places = P.spread(ends.map((end) => end.y), LINE, y0 + 2, y0 + height);
    const column = Math.max(...ends.map((end) => end.x)) + (ends.length > 6 ? 24 : 12);
    ends.forEach((end, i) => {
      const value = text.shown(end.value, metric), named = x0 + width + room - column - P.widthOf(value) - 6;
      front.append(svg("g", { ...end.colours, class: `${end.colours.class} label${end.main ? " main" : ""}`, "data-label": end.label },
        svg("path", { class: "leader", d: `M${end.x + 5} ${end.y}L${column - 3} ${places[i]}` }),
        svg("text", { x: column, y: places[i] + 4 }, P.short(end.label, named), " ", svg("tspan", { class: "value" }, value))));
    });
    group.append(back, front);
    return { group, found };
  };

  // Of the points near a place of the figure the nearest one; those of layers in colour come first.
  const nearest = (found, x, y) => {
    const best = (some) => some.map((point) => [Math.hypot((point.x - x), (point.y - y)), point]).sort((a, b) => a[0] - b[0])[0];
    const on = best(found.filter((point) => point.on)), any = best(found);
    const hit = on && on[0] < 30 ? on : any;
    return hit && hit[0] < 40 ? hit[1] : null;
  };

  const figure = (run, shared, stacked) => {
    const holder = html("figure", {}), metric = shared.metric;
    place.append(holder);
    if (data.runs.length > 1) holder.append(html("h3", {}, run.name));
    const width = shared.width, names = panelsOf(run, metric);
    if (!names.length) {
      holder.append(html("p", { class: "plain" }, `no ${metric}`));
      return;
    }
    const here = P.chosenLayers(run).map((layer) => layer.label);
    const shown = here.filter((label) => label === shared.marked || P.inColour().includes(label));
    const widest = Math.max(40, ...shown.map((label) => P.widthOf(label))) + P.widthOf("100.0") + (shown.length > 6 ? 34 : 22);
    const across = stacked ? 1 : names.length, room = Math.min(widest, (width / across) * 0.38);
    const height = Math.max(stacked ? 170 : 290, new Set(shown).size * LINE);
    const wide = width / across - LEFT - room, down = TOP + height + BOTTOM;
    const made = names.map((split, i) => panel(run, split, {
      x0: LEFT + (stacked ? 0 : (i * width) / across), y0: TOP + (stacked ? i * down : 0), width: wide, height, room,
    }, shared));
    const all = made.flatMap((one) => one.found), total = stacked ? down * names.length : down;
    const picture = svg("svg", { viewBox: `0 0 ${width} ${total}`, width, height: total, role: "img",
      "aria-label": `${metric} of ${run.name} over epochs on ${names.map((split) => P.called(run, split)).join(" and ")}; the numbers of an epoch are in the table` }, ...made.map((one) => one.group));
    const scene = html("div", { class: "scene", id: `curves-${data.runs.indexOf(run)}`, tabindex: 0, role: "group",
      "aria-label": `Curves of ${run.name}: arrow keys choose epoch and layer`,
      onkeydown: (event) => keys(event, run, names), onblur: readout.hide,
      onpointermove: (event) => {
        const area = picture.getBoundingClientRect(), scale = area.width / width;
        const point = nearest(all, (event.clientX - area.left) / scale, (event.clientY - area.top) / scale);
        if (point) readout.show(readout.lines(run, metric, point.split, point.layer, point.i), event.clientX, event.clientY);
        else readout.hide();
        picture.querySelectorAll(".ring").forEach((ring) => ring.remove());
        if (point) picture.append(svg("circle", { class: "ring", cx: point.x, cy: point.y, r: 6 }));
      },
      onpointerleave: () => {
        readout.hide();
        picture.querySelectorAll(".ring").forEach((ring) => ring.remove());
      },
      onclick: (event) => {
        const area = picture.getBoundingClientRect(), scale = area.width / width;
        const point = nearest(all, (event.clientX - area.left) / scale, (event.clientY - area.top) / scale);
        if (!point) return;
        state.set("layer", run.layers[point.layer].label);
        state.set("epoch", point.epoch);
      },
    }, picture);
    holder.append(scene);
  };

  // Left and right choose the epoch, up and down the layer that stands out.
  const keys = (event, run, names) => {
    if (!P.stepped(event, run, P.inColour())) return;
    const scene = document.getElementById(`curves-${data.runs.indexOf(run)}`), area = scene.getBoundingClientRect();
    scene.focus({ preventScroll: true });
    const layer = P.placeOf(run, state.get("layer")), epoch = P.epochPlace(run, state.get("epoch"));
    const lines = names.flatMap((split) => readout.lines(run, state.get("metric"), split, layer, epoch).slice(1, 3));
    readout.show([`${state.get("layer")}, epoch ${run.epochs[epoch]}`, ...lines, run.name], area.left + 30, area.top + 40);
  };

  P.drawn(["runs", "layers", "epoch", "metric", "layer"], () => {
    const runs = P.shownRuns().filter((run) => run.epochs.length > 1), metric = state.get("metric"), focused = document.activeElement && document.activeElement.id;
    const epochs = runs.flatMap((run) => run.epochs);
    const shared = { metric, domain: P.limits(valuesOf(runs, metric), metric), range: [Math.min(...epochs), Math.max(...epochs)], marked: state.get("layer") };
    place.replaceChildren();
    const { count, width } = P.columns(place, runs.length, 300);
    for (const run of runs) figure(run, { ...shared, width }, count > 1 || width < 620);
    if (focused && focused.startsWith("curves-")) document.getElementById(focused)?.focus({ preventScroll: true });
    const interval = P.intervalOf(metric);
    document.getElementById("curves-caption").textContent = [
      `Labels: ${metric}${P.percent(metric) ? " in %" : ""} at the last epoch.`,
      interval && runs.some((run) => P.chosenLayers(run).some((layer) => layer.label === shared.marked)) ? `Band of ${shared.marked}: ${interval}.` : "",
      P.inColour().length < state.get("layers").length ? "Pale lines: the other layers chosen." : "",
      runs.length < P.shownRuns().length ? `By layer alone, having one epoch: ${P.shownRuns().filter((run) => run.epochs.length < 2).map((run) => run.name).join(", ")}.` : "",
      `Epoch 0: ${[...new Set(runs.map((run) => run.start))].join(" or ")}.`,
    ].join(" ");
  });
};
