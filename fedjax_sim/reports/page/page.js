(() => {
  "use strict";
  const content = JSON.parse(document.getElementById("data").textContent);
  const hidden = new Set();
  const figures = [];

  // Columns of equal length to a row per point.
  function rowsOf(columns) {
    const names = Object.keys(columns);
    return columns[names[0]].map((_, i) => Object.fromEntries(names.map(n => [n, columns[n][i]])));
  }

  // "$name" in a specification stands for a value of the view.
  function filled(spec, values) {
    return JSON.parse(JSON.stringify(spec), (key, value) =>
      typeof value === "string" && value.startsWith("$") && value.slice(1) in values
        ? values[value.slice(1)] : value);
  }

  const isNumber = value => typeof value === "number";

  function extent(rows, names) {
    let low = Infinity, high = -Infinity;
    for (const row of rows)
      for (const name of names) {
        const value = row[name];
        if (isNumber(value)) { low = Math.min(low, value); high = Math.max(high, value); }
      }
    return low <= high ? [low, high] : [0, 1];
  }

  function linesOf(chart, view, logX, logY) {
    const own = chart.methods.length > 0;  // of a sweep: no button hides its lines
    const methods = own ? chart.methods : content.methods;
    let rows = rowsOf(view.columns).filter(row => own || !hidden.has(row.m));
    if (logX) rows = rows.filter(row => row.x > 0);
    if (logY) rows = rows.filter(row => row.mean > 0);
    rows.forEach(row => { row.method = methods[row.m].label; });
    const base = logY ? rows.filter(row => !isNumber(row.low) || row.low > 0) : rows;
    let [low, high] = extent(base, ["mean", "low", "high"]);
    if (logY) {  // a band that reaches zero has no end on a logarithmic axis
      low = Math.min(low, extent(rows, ["mean"])[0]);
      rows.forEach(row => { if (isNumber(row.low)) row.low = Math.max(row.low, low); });
      high = extent(rows, ["mean", "high"])[1];
    } else {
      const room = (high - low || Math.abs(high) || 1) * 0.03;
      [low, high] = [low - room, high + room];
    }
    if (view.zero && !logY) [low, high] = [0, 1];
    return [rows, {
      x: view.x, y: view.y, value: view.value, xDomain: extent(rows, ["x"]), yDomain: [low, high],
      xScale: logX ? "log" : "linear", yScale: logY ? "log" : "linear",
      methods: methods.map(m => m.label), colors: methods.map(m => m.color), dashes: methods.map(m => m.dash),
    }];
  }

  async function draw(figure) {
    const chart = content.charts[figure.chart];
    const view = chart.views[figure.chosen.join("/")];
    let rows, values;
    if (chart.kind === "lines" || chart.kind === "shares") {
      [rows, values] = linesOf(chart, view, figure.log[0].checked, figure.log[1].checked);
    } else {
      rows = rowsOf(view.columns);
      values = { ...view, height: 110 + Math.min(420, 28 * view.rows) };
    }
    const spec = filled(content.specs[chart.kind], values);
    spec.data = { values: rows };
    if (figure.shown) figure.shown.finalize();
    figure.shown = await vegaEmbed(figure.plot, spec, {
      mode: "vega-lite", renderer: "canvas",
      actions: { export: true, source: false, compiled: false, editor: false },
    });
    figure.note.textContent = view.note || "";
  }

  function select(figure, number, [name, entries], start) {
    const label = document.createElement("label");
    const list = document.createElement("select");
    entries.forEach((text, i) => list.add(new Option(text, i, i === start, i === start)));
    list.addEventListener("change", () => {
      figure.chosen[number] = Number(list.value);
      preset(figure);
      draw(figure);
    });
    label.append(name, list);
    if (entries.length > 1) figure.controls.append(label);
  }

  // Logarithmic axes that a view begins with.
  function preset(figure) {
    const logs = content.charts[figure.chart].views[figure.chosen.join("/")].logs;
    if (logs) figure.log.forEach((box, i) => { box.checked = logs[i]; });
  }

  for (const element of document.querySelectorAll("figure[data-chart]")) {
    const chart = content.charts[element.dataset.chart];
    const figure = {
      chart: element.dataset.chart,
      chosen: JSON.parse(element.dataset.start),
      controls: element.querySelector(".controls"),
      plot: element.querySelector(".plot"),
      note: element.querySelector(".view-note"),
      log: [], shown: null,
    };
    chart.choices.forEach((choice, i) => select(figure, i, choice, figure.chosen[i]));
    const logs = document.createElement("span");
    for (const axis of ["x", "y"]) {
      const label = document.createElement("label");
      const box = document.createElement("input");
      box.type = "checkbox";
      box.addEventListener("change", () => draw(figure));
      label.append(box, `log ${axis}`);
      figure.log.push(box);
      if (chart.kind === "lines" || (chart.kind === "shares" && axis === "x")) logs.append(label);
    }
    figure.controls.append(logs);
    preset(figure);
    figures.push(figure);
  }

  for (const button of document.querySelectorAll(".methods button"))
    button.addEventListener("click", () => {
      const number = Number(button.dataset.method);
      hidden.has(number) ? hidden.delete(number) : hidden.add(number);
      for (const each of document.querySelectorAll(`.methods button[data-method="${number}"]`))
        each.setAttribute("aria-pressed", String(!hidden.has(number)));
      figures.filter(f => ["lines", "shares"].includes(content.charts[f.chart].kind)).forEach(draw);
    });

  Promise.all(figures.map(draw)).then(() => { document.body.dataset.drawn = "true"; });
})();
