const root = document.documentElement;
const template = JSON.parse(document.getElementById("figure-template").textContent);  // of every figure
const panels = [...document.querySelectorAll(".chart")].map(chart => {
  const panel = chart.parentElement;
  const figures = Object.values(JSON.parse(chart.nextElementSibling.textContent));
  const buttons = [...panel.querySelectorAll("button")];
  const find = selector => panel.querySelector(selector);
  return {chart, figures, shown: 0, buttons, data: find("details.data"), title: find(".title"),
    subtitle: find(".subtitle"), legend: find(".legend"), hidden: new Set()};
});
const plain = text => new DOMParser().parseFromString(String(text ?? ""), "text/html").body.textContent;

// The figure with each "var(--name)" replaced by the value that the style gives it now.
function applyTheme(value) {
  if (typeof value === "string") {
    const name = /^var\((--[a-z_]+)\)$/.exec(value);
    return name ? getComputedStyle(root).getPropertyValue(name[1]).trim() : value;
  }
  if (Array.isArray(value)) return value.map(applyTheme);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, applyTheme(inner)]));
}

function draw() { panels.forEach(drawOne); }

// The names of what is drawn, above the chart: there they break their lines, which plotly cuts. A press hides or shows.
const MARKS = {
  circle: "\u25cf", square: "\u25a0", diamond: "\u25c6", cross: "\u271a", "circle-open": "\u25cb",
  "square-open": "\u25a1", "diamond-open": "\u25c7",
};
const LINES = {solid: "\u2014", dash: "\u2013 \u2013", dot: "\u00b7 \u00b7 \u00b7", dashdot: "\u2013 \u00b7"};
function drawLegend(panel, data, layout) {
  const key = trace => trace.legendgroup ?? trace.name;
  panel.legend.replaceChildren();
  for (const trace of layout.showlegend ? data : []) {
    if (panel.hidden.has(key(trace))) trace.visible = false;
    if (trace.showlegend === false) continue;
    const entry = panel.legend.appendChild(document.createElement("button")), mark = document.createElement("span");
    const line = trace.mode.includes("lines") ? LINES[trace.line?.dash ?? "solid"] : "";
    mark.textContent = line + (trace.mode.includes("markers") ? MARKS[trace.marker?.symbol ?? "circle"] : "");
    mark.style.color = trace.mode.includes("markers") ? trace.marker.color : trace.line.color;
    entry.type = "button";
    entry.append(mark, plain(trace.name));
    entry.setAttribute("aria-pressed", !panel.hidden.has(key(trace)));
    entry.addEventListener("click", () => {
      if (!panel.hidden.delete(key(trace))) panel.hidden.add(key(trace));
      drawOne(panel);
    });
  }
  layout.showlegend = false;
}

function drawOne(panel) {
    const {chart, figures, shown, title, subtitle} = panel, {data, layout} = applyTheme(figures[shown]);
    drawLegend(panel, data, layout);
    title.textContent = figures[shown].title;
    subtitle.textContent = figures[shown].subtitle;
    layout.dragmode = matchMedia("(pointer: coarse)").matches ? false : "zoom";  // a finger scrolls the page
    layout.template = applyTheme(template);
    if ("printing" in root.dataset) layout.width = chart.clientWidth;  // paper does not make a chart fit by itself
    Plotly.react(chart, data, layout, {responsive: true, displayModeBar: false});
}

// The numbers that are drawn, a row for each point or cell.
function tabulate({figures, shown, data}) {
  data.querySelector("div")?.remove();
  if (!data.open) return;
  const box = document.createElement("div"), table = box.appendChild(document.createElement("table"));
  box.className = "scroll";
  watch(box);
  const row = (cells, kind) => {
    const tr = table.appendChild(document.createElement("tr"));
    cells.forEach(text => { tr.appendChild(document.createElement(kind)).textContent = text; });
  };
  const {title, layout, data: traces} = figures[shown];
  row(["series", plain(layout.xaxis.title?.text ?? "x"), plain(layout.yaxis.title?.text) || title], "th");
  for (const trace of traces.filter(trace => trace.hoverinfo !== "skip")) {
    if (trace.z) {
      const named = i => [trace.name, trace.y[i]].filter(Boolean).join(", ");
      trace.z.forEach((line, i) => line.forEach((share, j) => row([named(i), trace.x[j], share].map(plain), "td")));
      continue;
    }
    const ticks = layout.yaxis.ticktext;  // of a chart whose rows have names
    trace.x.forEach((x, i) => row(
      [plain(trace.name ?? ticks?.[trace.y[i]]), plain(x), plain(ticks ? x : trace.y[i])], "td"));
  }
  data.append(box);
}

for (const panel of panels) {
  panel.buttons.forEach((button, i) => button.addEventListener("click", () => {
    panel.shown = i;
    panel.buttons.forEach((other, j) => other.setAttribute("aria-pressed", i === j));
    drawOne(panel);
    tabulate(panel);
  }));
  panel.data.addEventListener("toggle", () => tabulate(panel));
}

// A table that is wider than its box says so, until its end is reached. The arrow keys scroll what has the focus.
function markOverflow(box) {
  box.toggleAttribute("data-more", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
  if (box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight) box.tabIndex = 0;
  else box.removeAttribute("tabindex");
}
const boxes = new ResizeObserver(entries => entries.forEach(entry => markOverflow(entry.target)));
function watch(box) {
  boxes.observe(box);
  box.addEventListener("scroll", () => markOverflow(box), {passive: true});
}
document.querySelectorAll(".scroll").forEach(watch);

// A long table can be sorted by its heads, and filtered.
const MULTIPLES = {k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18, min: 60, h: 3600, days: 86400};
function sortValue(text) {  // the first number in it, with its unit; NaN if it does not begin with one
  const parts = text.split(" to ")[0].replaceAll(",", "").matchAll(/(-?[\d.]+(?:e[-+]?\d+)?) ?([a-zA-Z]*)/g);
  return /^-?\d/.test(text) ? [...parts].reduce((sum, [, number, unit]) => sum + number * (MULTIPLES[unit] ?? 1), 0) : NaN;
}
function sortRows(table, heads, column) {
  const ascending = heads[column].getAttribute("aria-sort") !== "ascending", sign = ascending ? 1 : -1;
  heads.forEach((head, i) => head.setAttribute("aria-sort", i !== column ? "none" : ascending ? "ascending" : "descending"));
  const rows = [...table.tBodies[0].rows].map(row => {
    const text = row.cells[column].textContent;
    return {row, text, number: sortValue(text)};
  });
  const compare = (a, b) => isNaN(a.number) || isNaN(b.number) ? a.text.localeCompare(b.text) : a.number - b.number;
  table.tBodies[0].append(...rows.sort((a, b) => sign * compare(a, b)).map(({row}) => row));
}
for (const table of document.querySelectorAll(".scroll table")) {
  const rows = [...table.tBodies[0].rows], heads = [...table.tHead.rows[0].cells];
  if (rows.length <= 50) continue;
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sortRows(table, heads, column));
    head.append(button);
    head.setAttribute("aria-sort", "none");
  });
  const filter = document.createElement("input"), texts = rows.map(row => row.textContent.toLowerCase());
  filter.type = "search";
  filter.className = "filter";
  filter.placeholder = filter.ariaLabel = `filter ${rows.length.toLocaleString("en")} rows`;
  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/);
    rows.forEach((row, i) => { row.hidden = !words.every(word => texts[i].includes(word)); });
  });
  table.parentElement.classList.add("long");
  table.parentElement.before(filter);
}

draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
addEventListener("beforeprint", () => {
  root.dataset.printing = "";
  document.querySelectorAll("details:not(.data)").forEach(details => { details.open = true; });
  draw();
});
addEventListener("afterprint", () => { delete root.dataset.printing; draw(); });
