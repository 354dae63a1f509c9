"use strict";

// The table of the chosen epoch: a row for each layer chosen of each run. Rows are sorted by any column and found by text; the
// name of a layer opens all that is stored of it at that epoch.
window.layerprobe.table = () => {
  const P = window.layerprobe;
  const { data, state, text, html, cell } = P;
  document.getElementById("table").hidden = false;
  const box = document.getElementById("table-box"), many = data.runs.length > 1, open = new Set();

  const search = html("input", { type: "search", id: "table-filter", value: state.get("filter") || "", oninput: () => state.set("filter", search.value) });
  const count = html("output", { for: "table-filter", id: "table-count" });
  document.getElementById("table-tools").append(html("label", {}, "Show rows with ", search), count);

  const rowsOf = (metric) => P.shownRuns().flatMap((run) => {
    const e = P.epochPlace(run, state.get("epoch"));
    return P.chosenLayers(run).map((layer) => ({ run, layer, i: layer.i, e, gap: P.gap(run, metric, layer.i, e),
      ...Object.fromEntries(P.splits(run, metric).map((split) => [P.brief(run, split), cell(run, metric, split, layer.i, e)])) }));
  });

  const columnsOf = (rows, splits) => [
    ...(many ? [{ key: "run", name: "run", of: (row) => data.runs.indexOf(row.run) }] : []),
    { key: "layer", name: "layer", of: (row) => P.labels.indexOf(row.layer.label) },
    ...splits.map((split) => ({ key: split, name: split, number: true, of: (row) => row[split]?.value ?? null })),
    ...(rows.some((row) => row.gap !== null) ? [{ key: "gap", name: `${P.eachBrief(rows.filter((row) => row.gap !== null).map((row) => row.run), "train")} − test`, number: true, of: (row) => row.gap }] : []),
  ];

  const number = (found, metric, best, mark) => {
    if (!found) return html("td", { class: "number" }, "–");
    const { value, low, high, remark } = found;
    if (value === null) return html("td", { class: "number invalid" }, remark || "no valid number");
    const shown = text.shown(value, metric);
    return html("td", { class: `number${best ? " best" : ""}`, title: text.full(value), "data-value": text.full(value) },
      shown, mark ? html("sup", {}, mark) : null,
      low === null ? null : html("small", {}, ` ${text.shown(low, metric)} to ${text.shown(high, metric)}`));
  };

  // Remarks on the numbers shown, each once. A cell has the mark of its remark unless most of its column have the same:
  // then the head of the column has it. What most of every column have needs no mark.
  const remarksOf = (rows, splits) => {
    const own = new Map(splits.map((split) => [split, rows.map((row) => row[split]).filter((found) => found && found.value !== null).map((found) => found.remark)]));
    const often = (remarks) => [...new Set(remarks)].sort((a, b) => remarks.filter((one) => one === b).length - remarks.filter((one) => one === a).length)[0] || "";
    const usual = new Map([...own].map(([split, remarks]) => [split, remarks.includes("") ? "" : often(remarks)]));
    const shared = [...usual.values()].includes("") ? "" : often([...usual.values()]);
    const marked = [...new Set([...own.values()].flat())].filter((remark) => remark && remark !== shared);
    const mark = (remark) => (marked.includes(remark) ? String(marked.indexOf(remark) + 1) : "");
    return {
      head: (split) => mark(usual.get(split)),
      cell: (split, found) => (found && found.remark !== usual.get(split) ? mark(found.remark) : ""),
      lines: [...(shared ? [["", marked.length ? `Unless marked: ${shared}` : shared]] : []), ...marked.map((remark, i) => [String(i + 1), remark])],
    };
  };

  const details = (row, span) => {
    const list = html("table", { class: "inner" }, html("thead", {}, html("tr", {}, ...["split", "metric", "value", "interval", "notes"].map((name) => html("th", { scope: "col" }, name)))));
    const body = html("tbody", {});
    for (const metric of row.run.metrics.map((one) => one.name)) {
      for (const split of P.splits(row.run, metric)) {
        const found = cell(row.run, metric, split, row.i, row.e);
        if (found) body.append(html("tr", {}, ...[P.called(row.run, split), metric, text.full(found.value), found.low === null ? "" : `${text.full(found.low)} to ${text.full(found.high)}`, found.remark].map((one) => html("td", {}, one))));
      }
    }
    list.append(body);
    const { layer, pool, post_processing, similarity } = row.layer;
    return html("tr", { class: "details" }, html("td", { colspan: span },
      html("p", {}, `${row.run.name}, ${P.when(row.run, row.run.epochs[row.e])}, layer ${layer}, pool ${pool}, post-processing ${post_processing}, similarity ${similarity}`), list));
  };

  P.drawn(["runs", "layers", "epoch", "metric", "filter", "sort"], () => {
    const metric = state.get("metric"), focused = document.activeElement && document.activeElement.id;
    const all = rowsOf(metric), splits = ["train", "selection", "validation", "test"].filter((split) => all.some((row) => row[split]));
    const rows = all.filter((row) => splits.some((split) => row[split])), columns = columnsOf(rows, splits);
    const words = (state.get("filter") || "").toLowerCase().split(/\s+/).filter(Boolean);
    const name = (row) => [row.run.name, row.layer.label, row.layer.layer, row.layer.pool, row.layer.post_processing, row.layer.similarity].join(" ").toLowerCase();
    const found = rows.filter((row) => words.every((word) => name(row).includes(word)));
    const chosen = state.get("sort") || { key: many ? "run" : "layer", up: true };
    const best = new Map(splits.map((split) => [split, Math.max(...rows.map((row) => row[split]?.value ?? -Infinity))]));
    const remarks = remarksOf(rows, splits);
    const head = P.heads(columns, chosen, (to) => state.set("sort", to), { id: "sort", mark: remarks.head });
    const body = html("tbody", {});
    for (const row of P.sorted(found, columns, chosen)) {
      const key = `${data.runs.indexOf(row.run)}-${row.i}`, shown = open.has(key);
      const opener = html("button", { type: "button", id: `row-${key}`, "aria-expanded": String(shown), onclick: () => {
        if (!open.delete(key)) open.add(key);
        state.set("filter", search.value); // draws again
      } }, row.layer.label);
      const line = html("tr", { "data-layer": row.layer.label, "data-run": row.run.name });
      for (const column of columns) {
        if (column.key === "run") line.append(html("td", { class: "name" }, row.run.name));
        else if (column.key === "layer") line.append(html("th", { scope: "row" }, opener));
        else if (column.key === "gap") line.append(html("td", { class: "number", title: row.gap === null ? null : text.full(row.gap) }, text.gap(row.gap, metric)));
        else line.append(number(row[column.key], metric, row[column.key]?.value === best.get(column.key), remarks.cell(column.key, row[column.key])));
      }
      body.append(line);
      if (shown) body.append(details(row, columns.length));
    }
    box.replaceChildren(html("table", {}, html("thead", {}, head), body));
    const others = P.shownRuns().reduce((sum, run) => sum + run.layers.length, 0) - all.length;
    count.textContent = `${found.length} of ${rows.length} rows${others ? `; ${others} more of layers not chosen above` : ""}`;
    const interval = P.intervalOf(metric);
    document.getElementById("table-lead").replaceChildren(`${metric}${P.percent(metric) ? " in %" : ""}${P.frozen ? "" : ` at epoch ${state.get("epoch")}`}.`,
      html("span", { class: "hint" }, " Choose the name of a layer for every number that is stored of it."));
    document.getElementById("table-caption").textContent = [interval ? `Small numbers: ${interval}.` : "", "Bold: the largest of a column. The values are those of scores.csv."].join(" ");
    document.getElementById("table-remarks").replaceChildren(...remarks.lines.map(([mark, remark]) => html("li", {}, mark ? html("sup", {}, mark) : null, mark ? " " : "", remark)));
    if (focused && /^(sort|row)-/.test(focused)) document.getElementById(focused)?.focus({ preventScroll: true });
  });
};
