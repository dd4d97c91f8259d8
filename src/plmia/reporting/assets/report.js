// Behaviour of the page: plotly.js draws figures when they become visible; the table of records sorts and filters.
"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const drawn = JSON.parse(byId("drawn").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const coarse = window.matchMedia("(pointer: coarse)");
  const NARROW = 560;

  // ---- figures ----

  const theme = () => (dark.matches ? drawn.dark : drawn.light);

  function colour(text) {
    if (!text.startsWith("@")) return text;
    const [name, strength] = text.slice(1).split("/");
    const hex = theme()[name];
    if (!strength) return hex;
    const part = (at) => parseInt(hex.slice(at, at + 2), 16);
    return `rgba(${part(1)},${part(3)},${part(5)},${strength})`;
  }

  function painted(value) {
    if (typeof value === "string") return colour(value);
    // Copies, since plotly writes the range of a zoom into what it is given.
    if (Array.isArray(value)) return typeof value[0] === "number" ? value.slice() : value.map(painted);
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, painted(part)]));
    }
    return value;
  }

  function layoutOf(figure, width) {
    const layout = painted(figure.layout);
    const narrow = width < NARROW;
    const axes = Object.keys(layout).filter((key) => /^[xy]axis/.test(key));
    for (const key of axes) {
      Object.assign(layout[key], {
        gridcolor: colour("@grid"), linecolor: colour("@edge"), showline: true, automargin: true, fixedrange: coarse.matches,
      });
      const across = key.startsWith("x");
      const title = layout[key].title.text;
      layout[key].title = {
        text: narrow && across && title.length > 36 ? title.replace(" (", "<br>(") : title,
        font: { size: narrow ? 12 : 14 }, standoff: 8,
      };
      layout[key].tickfont = { size: narrow ? 11 : 12 };
      // Many long labels would overlap, so every second one is left out.
      const labels = layout[key].ticktext;
      if (narrow && across && labels.length > 5 && labels[0].includes("%")) {
        layout[key].ticktext = labels.map((text, i) => ((labels.length - i) % 2 ? text : ""));
      }
    }
    if (narrow && layout.xaxis2) {
      // Two panels side by side are stacked.
      Object.assign(layout.xaxis, { domain: [0, 1] });
      Object.assign(layout.xaxis2, { domain: [0, 1] });
      layout.yaxis.domain = [0.6, 1];
      layout.yaxis2.domain = [0, 0.4];
      layout.height *= 1.6;
    }
    return Object.assign(layout, {
      autosize: true,
      uirevision: "kept", // a zoom stays when series are switched or the colours change
      showlegend: false,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif", color: colour("@ink"), size: 13 },
      hoverlabel: { bgcolor: colour("@panel"), bordercolor: colour("@edge"), font: { color: colour("@ink") }, namelength: -1 },
      margin: { l: 20, r: narrow ? 28 : 24, t: narrow ? 34 : 30, b: 20 },
      dragmode: coarse.matches ? false : "zoom",
      bargap: 0,
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("@soft"), activecolor: colour("@ink") },
    });
  }

  const config = {
    responsive: true, displaylogo: false, displayModeBar: coarse.matches ? false : "hover",
    // Listed one by one, since a default button of plotly sends the figure's data to a server.
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
    plotlyServerURL: "",
  };
  const shown = new Map(); // name of a figure -> its traces as they are shown

  // Colours and width for which a figure is drawn.
  const look = () => `${dark.matches} ${window.innerWidth < NARROW}`;

  function draw(node) {
    const name = node.dataset.figure;
    const figure = drawn.figures[name];
    const plot = node.querySelector(".plot");
    if (!shown.has(name)) shown.set(name, figure.data.map((trace) => trace.visible !== false));
    node.classList.add("live");
    const asked = look();
    const data = painted(figure.data).map((trace, i) => Object.assign(trace, { visible: shown.get(name)[i] }));
    return Plotly.react(plot, data, layoutOf(figure, plot.clientWidth), config).then(() => {
      plot.setAttribute("role", "group");
      plot.setAttribute("aria-label", figure.alt);
      for (const svg of plot.querySelectorAll("svg")) svg.setAttribute("aria-hidden", "true");
      if (!node.dataset.drawn) {
        legend(node, figure);
        plot.on("plotly_relayout", () => retick(plot, figure));
      }
      retick(plot, figure);
      node.dataset.drawn = "true";
      // A change during the first drawing triggers no event.
      if (look() !== asked) draw(node);
    });
  }

  // The given ticks fit the whole figure. After a zoom, plotly chooses ticks until the whole figure is shown again.
  function retick(plot, figure) {
    const wanted = {};
    for (const key of Object.keys(figure.layout).filter((name) => /^[xy]axis/.test(name))) {
      const axis = figure.layout[key];
      const whole = axis.range.every((end, i) => Math.abs(end - plot.layout[key].range[i]) < 1e-6);
      // An axis without a title has one tick per group, and nothing between the groups.
      if (!axis.title.text) continue;
      const mode = whole ? "array" : "auto";
      if (plot.layout[key].tickmode === mode) continue;
      wanted[`${key}.tickmode`] = mode;
      if (mode === "auto") wanted[`${key}.nticks`] = 6;
      // Shares are labelled in percent.
      if (mode === "auto") wanted[`${key}.tickformat`] = axis.ticktext.some((text) => text.includes("%")) ? ".3~%" : "";
    }
    if (Object.keys(wanted).length) Plotly.relayout(plot, wanted);
  }

  const unescaped = (text) => text.replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");

  function swatch(trace) {
    const ns = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(ns, "svg");
    svg.setAttribute("width", "26");
    svg.setAttribute("height", "12");
    svg.setAttribute("aria-hidden", "true");
    const variable = (text) => (text.startsWith("@") ? `var(--${text.slice(1).split("/")[0]})` : text);
    const add = (kind, attributes) => {
      const mark = document.createElementNS(ns, kind);
      for (const [key, value] of Object.entries(attributes)) mark.setAttribute(key, value);
      svg.append(mark);
    };
    if (trace.type === "bar") {
      add("rect", { x: 2, y: 1, width: 22, height: 10, fill: variable(trace.marker.color), "fill-opacity": 0.6 });
    } else if (trace.mode === "markers") {
      const open = trace.marker.symbol.endsWith("-open");
      const paint = open ? { fill: "none", stroke: variable(trace.marker.color), "stroke-width": 2 } : { fill: variable(trace.marker.color) };
      const shapes = {
        square: "8,1 18,1 18,11 8,11", diamond: "13,0 19,6 13,12 7,6", "triangle-up": "13,0 19,11 7,11", "triangle-down": "13,12 19,1 7,1",
        x: "8,3 10,1 13,4 16,1 18,3 15,6 18,9 16,11 13,8 10,11 8,9 11,6",
      };
      const shape = shapes[trace.marker.symbol.replace("-open", "")];
      if (shape) add("polygon", { points: shape, ...paint });
      else add("circle", { cx: 13, cy: 6, r: 5, ...paint });
    } else {
      const dashes = { dash: "7,4", dot: "2,3", dashdot: "7,3,2,3", longdash: "11,4" };
      add("line", {
        x1: 0, y1: 6, x2: 26, y2: 6, stroke: variable(trace.line.color), "stroke-width": trace.line.width,
        "stroke-dasharray": dashes[trace.line.dash] || "none",
      });
    }
    return svg;
  }

  function legendButton(label, mark, pressed, toggle) {
    const button = document.createElement("button");
    button.type = "button";
    button.setAttribute("aria-pressed", String(pressed));
    if (mark) button.append(mark);
    button.append(label);
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(on));
      toggle(on);
    });
    return button;
  }

  function legend(node, figure) {
    const box = node.querySelector(".legend");
    const entries = figure.data.filter((trace) => trace.showlegend !== false);
    if (entries.length < 2) return;
    const state = shown.get(node.dataset.figure);
    const isBand = (trace) => trace.fill === "toself";
    const hiddenBands = figure.data.some((trace) => isBand(trace) && trace.visible === false);
    const off = new Set(); // groups that are switched off
    let bands = false;
    const update = () => {
      figure.data.forEach((trace, i) => {
        const wanted = trace.visible !== false || (bands && isBand(trace));
        state[i] = wanted && !off.has(trace.legendgroup ?? trace.name);
      });
      draw(node);
    };
    for (const trace of entries) {
      const group = trace.legendgroup ?? trace.name;
      box.append(legendButton(unescaped(trace.name), swatch(trace), true, (on) => {
        if (on) off.delete(group); else off.add(group);
        update();
      }));
    }
    if (hiddenBands) {
      box.append(legendButton("95 % bands of the attacks shown", null, false, (on) => { bands = on; update(); }));
    }
  }

  const figures = [...document.querySelectorAll("figure[data-figure]")];
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) {
        watcher.unobserve(entry.target);
        draw(entry.target);
      }
    }
  }, { rootMargin: "500px" });
  figures.forEach((node) => watcher.observe(node));
  const redraw = () => figures.filter((node) => node.dataset.drawn).forEach(draw);
  // A separate query list: Chromium sends no event for a change that was already read from a list.
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if ((width < NARROW) !== (window.innerWidth < NARROW)) redraw();
    width = window.innerWidth;
  });

  // ---- records ----

  const rows = JSON.parse(byId("rows").textContent);
  const count = rows.index.length;
  const capitalised = (word) => word[0].toUpperCase() + word.slice(1);
  const PAGE = 25;
  const number = (value, digits) => (value === 0 ? "0" : Math.abs(value) < 1e-3 ? value.toExponential(2) : String(Number(value.toPrecision(digits))));
  const columns = [
    { key: "rank", head: "Rank", text: (i) => rows.rank[i].toLocaleString("en") },
    { key: "index", head: capitalised(rows.unit), text: (i) => String(rows.index[i]) },
    { key: "group", head: "Group", text: (i) => String(rows.group[i]) },
    { key: "records", head: "Records", text: (i) => String(rows.records[i]), below: true },
    { key: "first_record", head: "First record", text: (i) => String(rows.first_record[i]), below: true },
    { key: "label", head: "Class", text: (i) => rows.classes[rows.label[i]], words: true },
    { key: "score", head: "Score", text: (i) => number(rows.score[i], 5) },
    { key: "p", head: "p", text: (i) => number(rows.p[i], 3) },
    { key: "q", head: "q", text: (i) => number(rows.q[i], 3) },
    { key: "member", head: "Member", text: (i) => (rows.member[i] ? "yes" : "no"), below: true },
  ].filter((column) => rows[column.key]);
  // On a small screen, the numbers of a record are on one line; its class, membership and preview are below.
  const slim = window.matchMedia("screen and (max-width: 760px)");
  const visible = () => columns.filter((column) => !((column.words || column.below) && slim.matches));
  const state = { key: "rank", up: true, page: 0, found: [] };

  function head() {
    const line = document.createElement("tr");
    for (const column of visible()) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.dataset.head = column.head;
      if (column.words) cell.className = "words";
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = column.head;
      button.dataset.key = column.key;
      button.addEventListener("click", () => {
        // Larger scores, members, and smaller ranks, p and q come first.
        state.up = state.key === column.key ? !state.up : column.key !== "score" && column.key !== "member";
        state.key = column.key;
        refresh();
      });
      cell.append(button);
      line.append(cell);
    }
    if (rows.previews.length && !slim.matches) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.className = "what";
      cell.textContent = rows.records ? "What the first record is" : "What it is";
      line.append(cell);
    }
    byId("table").tHead.replaceChildren(line);
  }

  function matches(i, words, label, q) {
    if (label !== "" && String(rows.label[i]) !== label) return false;
    if (q !== "" && rows.q[i] > Number(q)) return false;
    if (!words) return true;
    const text = [rows.index[i], rows.group ? `group ${rows.group[i]}` : "", rows.label ? rows.classes[rows.label[i]] : "", rows.previews[i]?.text ?? ""].join(" ");
    return text.toLowerCase().includes(words);
  }

  function refresh() {
    const words = byId("search").value.trim().toLowerCase();
    const label = rows.label ? byId("class").value : "";
    const q = byId("fdr").value;
    const values = rows[state.key];
    const sign = state.up ? 1 : -1;
    state.found = rows.index.map((_, i) => i).filter((i) => matches(i, words, label, q));
    state.found.sort((a, b) => sign * (values[a] - values[b]) || a - b);
    state.page = 0;
    show();
  }

  function preview(i) {
    const cell = document.createElement("td");
    cell.className = "what";
    const what = rows.previews[i];
    if (what?.image) {
      const image = document.createElement("img");
      image.src = what.image;
      image.alt = `Record ${(rows.first_record ?? rows.index)[i]}`;
      cell.append(image);
    } else if (what?.text) {
      const text = document.createElement("span");
      text.textContent = text.title = what.text;
      cell.append(text);
    }
    return cell;
  }

  function below(i, line) {
    const cell = preview(i);
    const member = rows.member ? (rows.member[i] ? "member" : "non-member") : "";
    const of = rows.records ? `${rows.records[i]} records, the first is ${rows.first_record[i]}` : "";
    const told = [rows.label ? rows.classes[rows.label[i]] : "", member, of].filter(Boolean).join(", ");
    if (told) {
      const name = document.createElement("strong");
      name.textContent = told;
      if (rows.previews[i]?.text) cell.firstChild.prepend(name, " · ");
      else cell.append(name);
    }
    if (!cell.childNodes.length) return [];
    line.className = "above";
    cell.colSpan = visible().length;
    const row = document.createElement("tr");
    row.append(cell);
    return [row];
  }

  function show() {
    const pages = Math.max(1, Math.ceil(state.found.length / PAGE));
    state.page = Math.min(Math.max(state.page, 0), pages - 1);
    const start = state.page * PAGE;
    const lines = state.found.slice(start, start + PAGE).flatMap((i) => {
      const line = document.createElement("tr");
      for (const column of visible()) {
        const cell = document.createElement("td");
        if (column.words) cell.className = "words";
        cell.textContent = column.text(i);
        line.append(cell);
      }
      if (slim.matches) return [line, ...below(i, line)];
      if (rows.previews.length) line.append(preview(i));
      return [line];
    });
    byId("table").tBodies[0].replaceChildren(...lines);
    for (const button of byId("table").tHead.querySelectorAll("button")) {
      const chosen = button.dataset.key === state.key;
      button.parentElement.setAttribute("aria-sort", chosen ? (state.up ? "ascending" : "descending") : "none");
    }
    const found = state.found.length;
    byId("count").textContent = found
      ? `${capitalised(rows.units)} ${start + 1} to ${Math.min(start + PAGE, found)} of ${found.toLocaleString("en")} that match.`
      : `No ${rows.unit} matches.`;
    byId("page").textContent = `Page ${state.page + 1} of ${pages}`;
    byId("first").disabled = byId("previous").disabled = state.page === 0;
    byId("next").disabled = byId("last").disabled = state.page >= pages - 1;
  }

  function csv() {
    // A spreadsheet would execute a text that looks like a formula.
    const quoted = (text) => `"${(/^[=+\-@\t\r]/.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;
    // The columns of records.csv, where labels may be empty, or of people.csv.
    const keys = ["index", rows.records ? "" : "label", "score", "p", "q", "rank", "group", "member", "records", "first_record"];
    const held = keys.filter((key) => rows[key] || key === "label");
    const lines = state.found.map((i) => {
      const values = held.map((key) => (rows[key] ? rows[key][i] : ""));
      const cells = values.map((value) => (typeof value === "string" && value ? quoted(value) : value));
      return (rows.named && rows.label ? [...cells, quoted(rows.classes[rows.label[i]])] : cells).join(",");
    });
    const header = `${held.join(",")}${rows.named && rows.label ? ",class" : ""}`;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([[header, ...lines, ""].join("\n")], { type: "text/csv" }));
    link.download = `exposed_${rows.units}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  head();
  if (rows.label) {
    for (const [label, name] of Object.entries(rows.classes)) byId("class").append(new Option(name, label));
  } else {
    byId("class-label").hidden = true;
  }
  byId("held").textContent = rows.total > count
    ? `This page holds the first ${count.toLocaleString("en")} of ${rows.total.toLocaleString("en")}${rows.in_file ? `; ${rows.file} has all` : ""}.` : "";
  const described = rows.previews.length;
  byId("contents").textContent = described && described < count
    ? `Contents are shown, and searched, for the ${described.toLocaleString("en")} most exposed ${rows.units}.` : "";
  byId("controls").hidden = byId("pager").hidden = false;
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  byId("search").addEventListener("input", refresh);
  byId("class").addEventListener("change", refresh);
  byId("fdr").addEventListener("change", refresh);
  byId("csv").addEventListener("click", csv);
  window.matchMedia(slim.media).addEventListener("change", () => { head(); show(); });
  const turn = (change) => () => { state.page = change(state.page); show(); };
  byId("first").addEventListener("click", turn(() => 0));
  byId("previous").addEventListener("click", turn((page) => page - 1));
  byId("next").addEventListener("click", turn((page) => page + 1));
  byId("last").addEventListener("click", turn(() => Infinity));
  refresh();
})();
