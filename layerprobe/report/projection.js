"use strict";

// The images of the gallery's map in two dimensions, a panel for each layer: what is pointed at is shown, and a click
// opens it in the gallery.
window.layerprobe.projection = () => {
  const P = window.layerprobe;
  const { data, state, html, svg, readout } = P;
  const section = document.getElementById("projection"), place = document.getElementById("projection-panels");
  if (!P.shownGalleries || !data.galleries.some((gallery) => gallery.map)) return;
  section.hidden = false;
  const MARGIN = 8, ABSENT = 65535, CLASSES = 12;
  const share = (value) => `${value >= 0.01 ? (100 * value).toFixed(1) : Number((100 * value).toPrecision(2))}\u00a0%`;

  // The coordinates of a gallery are decoded once.
  const decoded = new Map();
  const steps = (gallery) => {
    if (!decoded.has(gallery.place)) {
      const bytes = Uint8Array.from(atob(gallery.map.points), (character) => character.charCodeAt(0));
      decoded.set(gallery.place, new DataView(bytes.buffer));
    }
    return decoded.get(gallery.place);
  };
  const pointsOf = (gallery, e, l, size) => {
    const table = steps(gallery), count = gallery.queries.length, found = [];
    for (let query = 0; query < count; query++) {
      const at = 4 * ((e * gallery.layers.length + l) * count + query);
      const [across, up] = [table.getUint16(at, true), table.getUint16(at + 2, true)];
      if (across === ABSENT) continue;
      const [x, y] = [across, 65534 - up].map((step) => MARGIN + (step / 65534) * (size - 2 * MARGIN));
      found.push({ query, x, y, item: gallery.items[gallery.queries[query].item], nearest: gallery.find(gallery.epochs[e], gallery.layers[l], query)[0] });
    }
    return found;
  };

  const dot = (point, hue) => {
    const x = point.x.toFixed(1), y = point.y.toFixed(1);
    if (hue !== null) return svg("circle", { class: "own", style: `--hue:${hue}`, cx: x, cy: y, r: 3 });
    if (point.nearest?.right) return svg("circle", { class: "right", cx: x, cy: y, r: 2.8 });
    return svg("path", { class: "wrong", d: `M${x} ${(point.y - 3.6).toFixed(1)}l3.4 6h-6.8Z` });
  };

  const told = (point) => [
    P.names(point.item),
    P.picture(point.item, ""),
    point.nearest ? `nearest, ${point.nearest.right ? "right" : "wrong"}: ${P.names(point.nearest.item)}` : "no nearest image",
    ...(point.nearest ? [P.picture(point.nearest.item, "")] : []),
  ];

  const panel = (gallery, l, size, classes) => {
    const e = gallery.epochs.indexOf(P.epochOf(gallery)), layer = gallery.label(gallery.layers[l]), points = pointsOf(gallery, e, l, size);
    const several = data.runs.length > 1, holder = html("figure", {}, html("h3", {}, several ? `${gallery.run.name}, ${layer}` : layer));
    if (!points.length) {
      holder.append(html("p", { class: "plain" }, "This layer cannot be projected at this epoch."));
      return holder;
    }
    const picture = svg("svg", { viewBox: `0 0 ${size} ${size}`, width: size, height: size, role: "img", "aria-label": `Map of ${points.length} images by ${layer}` },
      ...points.map((point) => dot(point, classes.length > CLASSES ? null : Math.round((360 * classes.indexOf(point.item.name)) / classes.length))));
    const ring = svg("circle", { class: "ring", r: 6, visibility: "hidden" });
    picture.append(ring);
    let current = null;
    const show = (point, x, y) => {
      current = point;
      ring.setAttribute("visibility", point ? "visible" : "hidden");
      if (!point) return readout.hide();
      ring.setAttribute("cx", point.x);
      ring.setAttribute("cy", point.y);
      readout.show(told(point), x, y);
    };
    const inWindow = (point) => {
      const area = picture.getBoundingClientRect(), scale = area.width / size;
      return [area.left + point.x * scale, area.top + point.y * scale];
    };
    const under = (event) => {
      const area = picture.getBoundingClientRect(), scale = area.width / size;
      const [x, y] = [(event.clientX - area.left) / scale, (event.clientY - area.top) / scale];
      const best = points.map((point) => [Math.hypot(point.x - x, point.y - y), point]).sort((a, b) => a[0] - b[0])[0];
      return best[0] < 14 ? best[1] : null;
    };
    // The next point in a direction: near, and little aside.
    const next = ([dx, dy]) => {
      const ahead = points.filter((point) => (point.x - current.x) * dx + (point.y - current.y) * dy > 0.01);
      const cost = (point) => Math.abs((point.x - current.x) * dx + (point.y - current.y) * dy) + 2 * Math.abs((point.x - current.x) * dy - (point.y - current.y) * dx);
      return ahead.sort((a, b) => cost(a) - cost(b))[0] || current;
    };
    const directions = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const open = (point) => {
      readout.hide();
      P.openQuery(P.keyOf(point.item));
    };
    const kept = gallery.map.kept[e][l];
    holder.append(html("div", { class: "scene", id: `projection-${gallery.place}-${l}`, tabindex: 0, role: "group",
      "aria-label": `Images by ${layer}: arrow keys go from image to image, Enter opens one in the gallery`,
      onpointermove: (event) => show(under(event), event.clientX, event.clientY), onpointerleave: () => show(null), onblur: () => show(null),
      onclick: (event) => { const point = under(event); if (point) open(point); },
      onkeydown: (event) => {
        if (event.key === "Enter" && current) return open(current);
        if (!directions[event.key]) return;
        event.preventDefault();
        const point = current ? next(directions[event.key]) : points[0];
        show(point, ...inWindow(point));
      },
    }, picture), html("p", { class: "caption" }, kept === null ? "" : `neighbours kept: ${share(kept)}, chance: ${share(gallery.map.chance)}`));
    return holder;
  };

  P.drawn(["runs", "layers", "epoch"], () => {
    const focused = document.activeElement && document.activeElement.id;
    const panels = P.shownGalleries().filter((gallery) => gallery.map).flatMap((gallery) =>
      gallery.layers.map((layer, l) => [gallery, l]).filter(([, l]) => P.inColour().includes(gallery.label(gallery.layers[l]))));
    const onMap = (gallery) => gallery.queries.filter((query) => query.rules.includes("on the map")).map((query) => gallery.items[query.item]);
    const images = [...new Set(panels.map(([gallery]) => gallery))].flatMap(onMap), classes = [...new Set(images.map((item) => item.name))].sort();
    place.replaceChildren();
    const { width } = P.columns(place, panels.length, 250);
    place.append(...panels.map(([gallery, l]) => panel(gallery, l, Math.min(width, 420), classes)));
    if (focused && focused.startsWith("projection-")) document.getElementById(focused)?.focus({ preventScroll: true });
    const map = panels.length ? panels[0][0].map : null;
    const room = map && onMap(panels[0][0]).length < map.drawn ? ` (${onMap(panels[0][0]).length} have room here)` : "";
    const total = map && map.total.toLocaleString("en");
    const sample = map && (map.sample === "all" ? `All ${total} images` : `${map.drawn} of ${total} images, ${map.sample === "images" ? "" : "whole classes "}drawn at random`);
    document.getElementById("projection-lead").textContent = map ? `${sample}${room}, by the first two principal components. Point at an image for its nearest neighbour; a click, or Enter, opens it in the gallery.` : "No layer chosen above has a map.";
    document.getElementById("projection-caption").replaceChildren(
      ...(classes.length > CLASSES ? [["right", "nearest neighbour right"], ["wrong", "wrong"]].map(([kind, name]) => html("span", { class: "key" }, svg("svg", { width: 14, height: 12, class: "map-key", "aria-hidden": "true" }, dot({ x: 7, y: 6, nearest: { right: kind === "right" } }, null)), ` ${name}`))
        : classes.map((name, i) => html("span", { class: "key" }, svg("svg", { width: 14, height: 12, class: "map-key", "aria-hidden": "true" }, dot({ x: 7, y: 6 }, Math.round((360 * i) / classes.length))), ` ${name}`))),
      " Neighbours kept: of an image's 10 nearest on the map by the layer, the share that is among its 10 nearest in the picture, on average.");
  });
};
