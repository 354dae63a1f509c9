// The gallery: a person picks a query, and sees the nearest images change with it, with the layers and with the epoch.
// Of its own the state keeps here `gallery-query`, which query is shown, `gallery-rule` and `gallery-text`.
(() => {
  const page = window.layerprobe;
  const { data, state, html } = page;
  const at = (id) => document.getElementById(`gallery-${id}`);
  const bytes = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const once = (values) => [...new Set(values)];
  const keyOf = (item) => `${item.picture} ${item.id}`; // two data sets may have one id for different images
  const names = (item) => (item.name === item.id ? item.name : `${item.name}, ${item.id}`);
  // Both ends of a long name: names of classes often differ at the end alone. Those that would be the same begin where
  // they differ, as in plots/class_names.py.
  const cut = (name, from) => {
    const rest = name.slice(from), most = from ? 21 : 22;
    return (from ? "…" : "") + (rest.length > most ? `${rest.slice(0, most - 12)}…${rest.slice(-11)}` : rest);
  };
  const distinct = (all) => {
    const begins = new Map(all.map((name) => [name, 0]));
    for (let moved = true; moved;) {
      moved = false;
      const groups = new Map();
      for (const name of all) {
        const text = cut(name, begins.get(name));
        groups.set(text, [...(groups.get(text) || []), name]);
      }
      for (const group of groups.values()) {
        if (group.length < 2) continue;
        let place = 0;
        while (group.every((name) => place < name.length - 1 && name[place] === group[0][place])) place++;
        for (const name of group) {
          if (place <= begins.get(name)) continue;
          begins.set(name, place);
          moved = true;
        }
      }
    }
    return begins;
  };
  const begins = distinct(once(data.galleries.flatMap((gallery) => gallery.items.map((item) => item.name))));
  const short = (name) => {
    return cut(name, begins.get(name)).split(/(?<=[/_])/).flatMap((part) => [part, html("wbr")]); // a line may end after a `/` or `_`
  };

  // A gallery with its tables decoded: find(epoch, layer, query) gives the items found, nearest first.
  const opened = (gallery) => {
    const { epochs, layers, queries, items, k } = gallery;
    const found = new DataView(bytes(gallery.found).buffer), right = bytes(gallery.right);
    const run = data.runs[gallery.run];
    const find = (epoch, layer, query) => {
      const start = ((epochs.indexOf(epoch) * layers.length + layers.indexOf(layer)) * queries.length + query) * k;
      return Array.from({ length: k }, (_, i) => start + i)
        .map((place) => ({ item: items[found.getInt16(2 * place, true)], right: right[place] === 1 }))
        .filter((one) => one.item); // -1 where there is none
    };
    const places = new Map(queries.map((query, place) => [keyOf(items[query.item]), place]));
    return { ...gallery, place: gallery.run, run, places, find, label: (layer) => run.layers[layer].label };
  };

  // The queries of some galleries, each once, with all the rules by which they were chosen.
  const queriesOf = (galleries) => {
    const queries = new Map();
    for (const { items, queries: asked } of galleries) {
      for (const { item, rules } of asked) {
        const key = keyOf(items[item]), known = queries.get(key);
        queries.set(key, { key, item: items[item], rules: once([...(known ? known.rules : []), ...rules]) });
      }
    }
    return [...queries.values()];
  };

  const picture = (item, text) => {
    const source = data.pictures[item.picture]; // an image that could not be read has none
    if (source) return html("span", { class: "gallery-picture" }, html("img", { src: source, alt: text }));
    return html("span", { class: "gallery-picture", role: "img", "aria-label": text }, "no image");
  };

  const sign = (right) => html("span", { class: "gallery-sign", "aria-hidden": "true" }, right ? "✓" : "✗");
  const neighbour = ({ item, right }) => {
    const how = right ? "right" : "wrong", text = `${how}: ${names(item)}`;
    return html(
      "li",
      { class: `gallery-${how}`, title: text },
      html("span", { class: "gallery-frame" }, picture(item, text), sign(right)),
      html("span", { class: "gallery-name", "aria-hidden": "true" }, ...short(item.name)),
    );
  };

  Object.assign(page, { keyOf, names, picture, sign });

  page.gallery = () => {
    const all = data.galleries.filter((gallery) => gallery.queries.length).map(opened);
    at("none").hidden = all.length > 0;
    at("body").hidden = all.length === 0;
    if (!all.length) return;

    const several = data.runs.length > 1;
    const galleries = () => all.filter((gallery) => state.get("runs").includes(gallery.place));
    const epochOf = ({ epochs }) => epochs.reduce((found, one) => (one <= state.get("epoch") ? one : found), epochs[0]);

    const filtered = (queries) => {
      const rule = at("rule").value, text = at("text").value.trim().toLowerCase();
      const has = (item) => item.name.toLowerCase().includes(text) || item.id.toLowerCase().includes(text);
      return queries.filter(({ item, rules }) => (!rule || rules.includes(rule)) && has(item));
    };

    const asked = () => {
      const kept = filtered(queriesOf(galleries()));
      return kept.find(({ key }) => key === state.get("gallery-query")) || kept[0];
    };

    const row = (gallery, layer, query) => {
      const found = gallery.find(epochOf(gallery), layer, query);
      const right = found.filter((one) => one.right).length;
      const count = found.length ? `${right} of ${found.length} right` : "nothing stored";
      const label = html("div", { class: "gallery-layer" }, html("b", {}, gallery.label(layer)), ` ${count}`);
      const list = html("ol", { "aria-label": gallery.label(layer) }, ...found.map(neighbour));
      return { element: html("div", { class: "gallery-row" }, label, list), text: label.textContent };
    };

    const block = (gallery, key) => {
      const name = `${several ? `${gallery.run.name}, ` : ""}${page.called(gallery.run, gallery.split)}, ${page.when(gallery.run, epochOf(gallery))}`;
      const layers = gallery.layers.filter((layer) => page.inColour().includes(gallery.label(layer)));
      const query = gallery.places.get(key);
      const rows = query === undefined ? [] : layers.map((layer) => row(gallery, layer, query));
      const missing = query === undefined ? "It was not searched for in this run." : "No layer chosen above is searched here.";
      const shown = rows.length ? rows.map(({ element }) => element) : [html("p", {}, missing)];
      const text = [name, ...rows.map((one) => one.text)].join("; ");
      return { element: html("div", {}, html("h3", {}, name), ...shown), text };
    };

    const showAnswer = () => {
      const query = asked();
      if (!query) {
        const none = galleries().length ? "No query has this rule and text." : "The runs chosen above have no images.";
        at("query").replaceChildren();
        at("found").replaceChildren(html("p", {}, none));
        at("said").textContent = none;
        return;
      }
      const { item, key, rules } = query, lines = rules.map((rule) => html("span", {}, `rule: ${rule}`));
      const id = html("span", { class: "gallery-quiet" }, item.id);
      const caption = html("figcaption", {}, html("b", {}, item.name), id, ...lines);
      const blocks = galleries().map((gallery) => block(gallery, key));
      at("query").replaceChildren(picture(item, `query: ${names(item)}`), caption);
      at("found").replaceChildren(...blocks.map(({ element }) => element));
      at("answer").classList.toggle("gallery-several", blocks.length > 1);
      at("said").textContent = blocks.map(({ text }) => text).join("; ");
    };

    const showQueries = () => {
      const queries = queriesOf(galleries()), kept = filtered(queries), chosen = asked();
      at("count").textContent = `${kept.length} of ${queries.length}`;
      const radio = ({ key }, i) => {
        const choose = () => state.set("gallery-query", key);
        const attributes = { type: "radio", name: "gallery-query", id: `gallery-query-${i}`, onchange: choose };
        return html("input", { ...attributes, checked: key === chosen.key });
      };
      const label = (query, i) => {
        const text = names(query.item);
        return html("label", { title: text }, radio(query, i), picture(query.item, text));
      };
      at("queries").replaceChildren(...kept.map(label));
      showAnswer();
    };

    const showRules = () => {
      const queries = queriesOf(galleries()), rules = once(queries.flatMap((query) => query.rules));
      const counted = (rule) => queries.filter((query) => query.rules.includes(rule)).length;
      const options = rules.map((rule) => html("option", { value: rule }, `${rule} (${counted(rule)})`));
      at("rule").replaceChildren(html("option", { value: "" }, `all (${queries.length})`), ...options);
      at("rule").value = rules.includes(state.get("gallery-rule")) ? state.get("gallery-rule") : "";
      showQueries();
    };

    // What the map of the images and the confusions share.
    Object.assign(page, { shownGalleries: galleries, epochOf,
      isQuery: (key) => all.some((gallery) => gallery.places.has(key)),
      openQuery: (key) => {
        state.set("gallery-query", key);
        at("rule").value = at("text").value = "";
        state.set("gallery-text", "");
        state.set("gallery-rule", "");
        at("title").scrollIntoView();
        at("queries").querySelector("input:checked")?.focus({ preventScroll: true });
      } });

    const noted = ({ run, notes }) => notes.map((text) => html("li", {}, several ? `${run.name}: ${text}` : text));
    at("notes").replaceChildren(...all.flatMap(noted));
    at("how").open = all.length === 1;
    at("text").value = state.get("gallery-text") || "";
    at("rule").addEventListener("change", () => state.set("gallery-rule", at("rule").value));
    at("text").addEventListener("input", () => state.set("gallery-text", at("text").value));
    state.on("gallery-rule", showQueries);
    state.on("gallery-text", showQueries);
    state.on("gallery-query", showAnswer);
    state.on("layers", showAnswer);
    state.on("epoch", showAnswer);
    state.on("runs", showRules);
    showRules();
  };
})();
