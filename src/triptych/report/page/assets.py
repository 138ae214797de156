"""The style, the script and the drawings of the page. Text, not files, so that they are in every installation."""

import re
from typing import Any

# Okabe and Ito's colours, which stay apart for colour-blind readers; lighter ones of the same hues on dark ground.
STYLE = """
:root {
  color-scheme: light dark;
  --paper: #f6f5f1; --card: #ffffff; --ink: #1c2024; --soft: #5b636b; --line: #e2e0d9;
  --full: #0072b2; --encoder_only: #c05a00; --decoder_only: #00855f;
  --optimum: #8a5a83; --wrong: #b3261e; --wrong-ground: #fbe3e0; --notice: #7a5200; --notice-ground: #fdf1d6;
}
@media screen and (prefers-color-scheme: dark) {
  :root:not([data-printing]) {
    --paper: #121518; --card: #1b2025; --ink: #eceae4; --soft: #a3abb3; --line: #333a41;
    --full: #56b4e9; --encoder_only: #f0a040; --decoder_only: #2fc79b;
    --optimum: #d9a3cf; --wrong: #ff9d94; --wrong-ground: #4a2321; --notice: #f2c869; --notice-ground: #3a2f16;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0 auto; max-width: 1180px; padding: 2rem 1.5rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, "Noto Sans", "Noto Sans CJK SC", "Noto Sans Arabic", sans-serif;
}
:root[data-printing] body { max-width: 700px; }
h1, h2, h3, p { margin: 0; overflow-wrap: anywhere; }
h1 { font-size: clamp(1.7rem, 4.5vw, 2.5rem); line-height: 1.15; letter-spacing: -0.02em; }
h2 { font-size: 1.5rem; letter-spacing: -0.01em; }
h3 { font-size: 1rem; margin: 0 0 .6rem; }
a { color: inherit; }
code, pre { font: 13px/1.5 ui-monospace, "Noto Sans Mono", "DejaVu Sans Mono", monospace; }
svg.glyph { display: block; flex: none; }
.soft { color: var(--soft); }
.full { --own: var(--full); }
.encoder_only { --own: var(--encoder_only); }
.decoder_only { --own: var(--decoder_only); }
.panel, .verdict, .run {
  background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 1rem 1.15rem; min-width: 0;
}
.brand { display: flex; align-items: center; gap: .6rem; margin-bottom: .7rem; font-weight: 650; }
.key { display: flex; flex-wrap: wrap; gap: .7rem 2rem; margin: 1.4rem 0 1.8rem; }
.key div { display: flex; align-items: center; gap: .65rem; line-height: 1.25; font-size: .9rem; }
.key b { color: var(--own); }
.verdicts { display: grid; gap: .75rem; }
.verdict {
  display: grid; grid-template-columns: 15rem 1fr; gap: .3rem 1.2rem; border-left: 5px solid var(--own, var(--line));
}
.verdict b { display: block; }
.badges { display: flex; flex-wrap: wrap; align-items: center; gap: .4rem; margin-top: .5rem; }
.badge {
  border-radius: 99px; padding: .1rem .65rem; font-size: .82rem; border: 1px solid var(--line); color: var(--soft);
  text-decoration: none; white-space: nowrap;
}
.badge.won { color: var(--card); background: var(--own); border-color: var(--own); font-weight: 600; }
.badge.differs, .notice { color: var(--notice); background: var(--notice-ground); border-color: transparent; }
.notice { border-radius: 12px; padding: .75rem 1.15rem; margin-top: .75rem; overflow-wrap: anywhere; }
section { margin-top: 3.2rem; display: grid; gap: 1rem; grid-template-columns: minmax(0, 1fr); }
.runs, .charts { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 17rem), 1fr)); }
.charts { grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
.run { border-top: 5px solid var(--own); display: grid; gap: .1rem; align-content: start; overflow-wrap: anywhere; }
.run > * { min-width: 0; }
.run header { display: flex; align-items: center; justify-content: space-between; color: var(--own); font-weight: 650; }
.big { font-size: 2.3rem; line-height: 1.2; font-weight: 680; letter-spacing: -0.02em; white-space: nowrap; }
.big small { font-size: 1rem; font-weight: 400; letter-spacing: 0; color: var(--soft); }
.gap { color: var(--optimum); font-weight: 600; }
.chart { width: 100%; }
.switch { display: flex; flex-wrap: wrap; gap: .35rem; margin-bottom: .5rem; }
.switch button {
  font: inherit; font-size: .82rem; padding: .1rem .65rem; border-radius: 99px; border: 1px solid var(--line);
  background: none; color: var(--soft); cursor: pointer;
}
.switch button[aria-pressed="true"] { background: var(--ink); border-color: var(--ink); color: var(--card); }
.switch a {
  font-size: .82rem; padding: .1rem .65rem; border-radius: 99px; border: 1px solid var(--line); color: var(--soft);
  text-decoration: none;
}
.switch a[aria-current] { background: var(--ink); border-color: var(--ink); color: var(--card); }
.ask, .ask .row, .answer { display: grid; gap: .8rem; align-content: start; grid-template-columns: minmax(0, 1fr); }
.ask .row { grid-template-columns: repeat(auto-fit, minmax(8rem, max-content)); align-items: end; }
.ask label { display: grid; gap: .2rem; font-weight: 600; font-size: .9rem; }
nav.switch, form.ask { margin-top: 1rem; }
.ask :is(textarea, input, .row button) {
  font: inherit; font-weight: 400; width: 100%; padding: .5rem .7rem; border-radius: 8px; border: 1px solid var(--line);
  background: var(--paper); color: var(--ink);
}
.ask .row button { background: var(--ink); color: var(--card); font-weight: 600; cursor: pointer; }
.said { font-size: 1.15rem; font-weight: 600; white-space: pre-wrap; overflow-wrap: anywhere; margin: .3rem 0; }
.bars th { color: var(--ink); width: 30%; }
.bars td:has(meter) { width: 55%; }
.bars meter { width: 100%; }
.data > summary { color: var(--soft); font-size: .82rem; font-weight: 400; }
.data > div { max-height: 20rem; overflow: auto; }
.scroll { overflow-x: auto; }
.scroll[data-more] { mask-image: linear-gradient(to left, transparent, #000 3rem); }
.scroll[data-more]::before {
  content: "more columns to the right \\2192"; position: sticky; left: 0; display: block; padding: 0 3rem .3rem 0;
  text-align: end; color: var(--notice); font-size: .82rem;
}
.legend { display: flex; flex-wrap: wrap; gap: 0 .9rem; }
.legend button {
  font: inherit; font-size: .82rem; text-align: start; overflow-wrap: anywhere; border: 0; padding: .1rem 0;
  background: none; color: var(--soft); cursor: pointer;
}
.legend button span { margin-right: .35rem; white-space: nowrap; } .legend [aria-pressed="false"] { opacity: .45; }
h3.title { font-weight: 500; margin: 0; } .says { font-size: .82rem; } .says:empty { display: none; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th { text-align: start; font-weight: 600; color: var(--soft); font-size: .8rem; vertical-align: bottom; }
th, td { padding: .45rem .6rem .45rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
tbody tr:last-child > * { border-bottom: 0; }
td.number { text-align: end; font-variant-numeric: tabular-nums; white-space: nowrap; }
th.number { text-align: end; }
td.words { white-space: nowrap; }
td.own, .samples th.own { color: var(--own); }
td.own { font-weight: 600; white-space: nowrap; }
td.path { overflow-wrap: anywhere; color: var(--soft); font-size: .82rem; min-width: 9rem; }
.sample { white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: plaintext; text-align: start; }
.samples { table-layout: fixed; }
.wrong {
  color: var(--wrong); background: var(--wrong-ground); box-shadow: 0 0 0 .2rem var(--wrong-ground); border-radius: 2px;
}
.wrong::before { content: "\\2717\\00a0"; font-weight: 700; }
.wrong mark { background: none; color: inherit; font-weight: 700; text-decoration: underline 2px; }
.right::before { content: "\\2713\\00a0"; color: var(--soft); }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .3rem 1.2rem; margin: 0; font-size: .9rem; }
dt { font-weight: 600; } dd { margin: 0; overflow-wrap: anywhere; }
dd code { margin-right: .5rem; }
dd ul { margin: .1rem 0 .5rem; padding: 0; list-style: none; color: var(--soft); }
details > summary { cursor: pointer; font-weight: 650; }
details[open] > summary { margin-bottom: .6rem; }
pre {
  margin: .3rem 0 .9rem; padding: .7rem .9rem; border-radius: 8px; background: var(--paper); white-space: pre-wrap;
  overflow-wrap: anywhere;
}
@media (max-width: 640px) {
  body { padding: 1.2rem .9rem 3rem; }
  .verdict { grid-template-columns: 1fr; }
  .panel, .verdict, .run { padding: .85rem .9rem; }
  .scroll :is(td, th):first-child { position: sticky; left: 0; background: var(--card); max-width: 45vw; }
  .scroll td:is(.own, .words):first-child { white-space: normal; overflow-wrap: anywhere; min-width: 38vw; }
  table.stack thead { display: none; }
  table.stack tr { display: block; padding: .6rem 0; border-bottom: 1px solid var(--line); }
  table.stack tr:last-child { border-bottom: 0; }
  table.stack td {
    display: grid; grid-template-columns: 7.5rem minmax(0, 1fr); border: 0; padding: .12rem 0; text-align: start;
  }
  table.stack td::before { content: attr(data-label); color: var(--soft); font-size: .82rem; }
  dl { grid-template-columns: minmax(0, 1fr); gap: 0; }
}
@media print {
  .switch, .data { display: none; }
  body { padding: 0; background: none; font-size: 10pt; }
  .panel, .verdict, .run, .notice, tr { break-inside: avoid; }
  .panel:has(table) { break-inside: auto; }
  .scroll { overflow: visible; }
  .scroll table { font-size: 6.5pt; }
  .scroll :is(th, td) { font-size: inherit; padding-right: .35rem; min-width: 0; }
  section { margin-top: 1.6rem; }
  h2, h3 { break-after: avoid; }
}
"""

_LIGHT = dict(re.findall(r"(--[a-z_-]+): (#[0-9a-f]+);", STYLE.partition("@media")[0]))


def in_light(figure: Any) -> Any:
    """A figure with the colours of light ground in place of the names of the style's.

    Args:
        figure: of plotly, as plain data.
    """
    if isinstance(figure, str):
        return _LIGHT.get(figure.removeprefix("var(").removesuffix(")"), figure)
    if isinstance(figure, list):
        return [in_light(value) for value in figure]
    return {key: in_light(value) for key, value in figure.items()} if isinstance(figure, dict) else figure


SCRIPT = """
const root = document.documentElement;
const panels = [...document.querySelectorAll(".chart")].map(chart => {
  const panel = chart.parentElement;
  const figures = Object.values(JSON.parse(chart.nextElementSibling.textContent));
  const buttons = [...panel.querySelectorAll("button")];
  const find = selector => panel.querySelector(selector);
  return {chart, figures, shown: 0, buttons, data: find("details.data"), title: find(".title"),
    says: find(".says"), legend: find(".legend"), hidden: new Set()};
});
const plain = text => new DOMParser().parseFromString(String(text ?? ""), "text/html").body.textContent;

// The figure with each "var(--name)" replaced by the value that the style gives it now.
function themed(value) {
  if (typeof value === "string") {
    const name = /^var\\((--[a-z_]+)\\)$/.exec(value);
    return name ? getComputedStyle(root).getPropertyValue(name[1]).trim() : value;
  }
  if (Array.isArray(value)) return value.map(themed);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, themed(inner)]));
}

function draw() { panels.forEach(drawOne); }

// The names of what is drawn, above the chart: there they break their lines, which plotly cuts. A press hides or shows.
const MARKS = {
  circle: "\\u25cf", square: "\\u25a0", diamond: "\\u25c6", cross: "\\u271a", "circle-open": "\\u25cb",
  "square-open": "\\u25a1", "diamond-open": "\\u25c7",
};
const LINES = {solid: "\\u2014", dash: "\\u2013 \\u2013", dot: "\\u00b7 \\u00b7 \\u00b7", dashdot: "\\u2013 \\u00b7"};
function explain(panel, data, layout) {
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
    const {chart, figures, shown, title, says} = panel, {data, layout} = themed(figures[shown]);
    explain(panel, data, layout);
    title.textContent = plain(figures[shown].title);
    says.textContent = plain(figures[shown].says);
    layout.dragmode = matchMedia("(pointer: coarse)").matches ? false : "zoom";  // a finger scrolls the page
    layout.hoverlabel = {bgcolor: themed("var(--card)"), font: {color: themed("var(--ink)")}, align: "left"};
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
  const heads = ["series", layout.xaxis.title?.text ?? "x", layout.yaxis.title?.text ?? title];
  row(heads.map(plain), "th");
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

// A table that is wider than its box says so, until its end is reached.
function hint(box) {
  box.toggleAttribute("data-more", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
}
const boxes = new ResizeObserver(entries => entries.forEach(entry => hint(entry.target)));
function watch(box) {
  boxes.observe(box);
  box.addEventListener("scroll", () => hint(box), {passive: true});
}
document.querySelectorAll(".scroll").forEach(watch);

draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
addEventListener("beforeprint", () => {
  root.dataset.printing = "";
  document.querySelectorAll("details:not(.data)").forEach(details => { details.open = true; });
  draw();
});
addEventListener("afterprint", () => { delete root.dataset.printing; draw(); });
"""


def _cells(left: int, filled: set[tuple[int, int]]) -> str:
    return "".join(
        f'<rect x="{left + 8 * column}" y="{2 + 8 * row}" width="7" height="7" rx="1.5" '
        f'fill="var(--{"own" if (row, column) in filled else "line"})"/>'
        for row in range(3)
        for column in range(3)
    )


_ALL = {(row, column) for row in range(3) for column in range(3)}
_CAUSAL = {(row, column) for row, column in _ALL if column <= row}


def glyph(architecture: str) -> str:
    """What may attend to what in an architecture, as a small drawing: all, the past, or both side by side.

    Args:
        architecture: its name in a summary.

    Returns:
        an inline SVG.
    """
    masks = {"full": (_ALL, _CAUSAL), "encoder_only": (_ALL,), "decoder_only": (_CAUSAL,)}[architecture]
    width = 28 * len(masks) - 2
    cells = "".join(_cells(1 + 28 * index, mask) for index, mask in enumerate(masks))
    size = f'width="{width}" height="27" viewBox="0 0 {width} 27"'
    return f'<svg class="glyph {architecture}" {size} aria-hidden="true">{cells}</svg>'


LOGO = (
    '<svg class="glyph" width="44" height="28" viewBox="0 0 44 28" aria-hidden="true">'
    '<path d="M1 5l10-3v24l-10-3z" fill="var(--encoder_only)"/>'
    '<rect x="13" y="1" width="18" height="26" fill="var(--full)"/>'
    '<path d="M43 5l-10-3v24l10-3z" fill="var(--decoder_only)"/></svg>'
)
