// Sorting, themes, and block maps that zoom. The page is whole without any of it.
(() => {
  "use strict";
  const root = document.documentElement;
  const make = (tag, attributes = {}, text = "") => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.textContent = text;
    return element;
  };
  const count = (n) => String(n).replace(/\B(?=(\d{3})+(?!\d))/g, ",");

  // --- themes: what the system has, or one of the two

  const redraw = [];
  const themes = ["system", "light", "dark"];
  const themeButton = make("button", { id: "theme", class: "tool", type: "button" });
  const setTheme = (theme) => {
    if (theme === "system") root.removeAttribute("data-theme");
    else root.dataset.theme = theme;
    themeButton.textContent = "theme: " + theme;
    themeButton.dataset.theme = theme;
    for (const draw of redraw) draw();
  };
  themeButton.addEventListener("click", () =>
    setTheme(themes[(themes.indexOf(themeButton.dataset.theme) + 1) % themes.length]));
  document.querySelector("header").prepend(themeButton);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw.forEach((draw) => draw()));

  // --- tables: a click on a heading sorts by it, a second one the other way

  // A number is a list of one, a shape of several; null where a number is missing.
  const keyOf = (row, column, numeric) => {
    const cell = row.cells[column];
    if (cell.dataset.v) return cell.dataset.v.split(",").map(Number);
    if (cell.dataset.v === "") return null;
    if (cell.classList.contains("number")) return [Number(cell.textContent.replace(/,/g, ""))];
    return numeric ? null : cell.textContent;
  };
  const compare = (a, b) => {
    if (!Array.isArray(a) || !Array.isArray(b)) return a < b ? -1 : a > b ? 1 : 0;
    for (let i = 0; i < Math.min(a.length, b.length); ++i)
      if (a[i] !== b[i]) return a[i] < b[i] ? -1 : 1;
    return a.length - b.length;
  };
  for (const table of document.querySelectorAll("table.data")) {
    const body = table.tBodies[0];
    if (body.rows.length < 2) continue;
    [...table.tHead.rows[0].cells].forEach((heading, column) => {
      if (heading.textContent === "") return;
      const button = make("button", { type: "button", title: "sort by this column" }, heading.textContent);
      heading.replaceChildren(button);
      button.addEventListener("click", () => {
        // Numbers first from the largest.
        const rows = [...body.rows];
        const numeric = heading.classList.contains("number");
        const before = heading.getAttribute("aria-sort");
        const up = before ? before === "descending" : !numeric;
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        heading.setAttribute("aria-sort", up ? "ascending" : "descending");
        const keys = new Map(rows.map((row) => [row, keyOf(row, column, numeric)]));
        rows.sort((a, b) => {
          const x = keys.get(a), y = keys.get(b);
          if (x === null || y === null) return (x === null) - (y === null);  // what is missing comes last
          return (up ? 1 : -1) * compare(x, y);
        });
        body.append(...rows);
      });
    });
  }

  // --- block maps

  // As src/report/block_map.cpp writes them.
  const kStates = "EPFMXO", kPartial = 1, kFull = 2, kMixed = 3, kMostShare = 2 ** 18 - 1;
  // On a cell of 10 x 10: pairs missing, pairs too many.
  const kMarks = { 4: "M2 2L8 8M8 2L2 8", 5: "M5 1.5V8.5M1.5 5H8.5" };
  const joined = (a, b) => {
    for (const strong of [4, 5, kPartial]) if (a === strong || b === strong) return strong;
    return a === b ? a : kMixed;
  };

  // Runs of one row: run i has states[i] up to column ends[i].
  class Row {
    constructor() { this.ends = []; this.states = []; }
    add(state, cells) {
      const n = this.ends.length, end = (n ? this.ends[n - 1] : 0) + cells;
      if (n && this.states[n - 1] === state) this.ends[n - 1] = end;
      else { this.ends.push(end); this.states.push(state); }
    }
    find(column) {
      let low = 0, high = this.ends.length - 1;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (this.ends[middle] > column) high = middle; else low = middle + 1;
      }
      return low;
    }
    at(column) { return this.states[this.find(column)]; }
  }

  const parseRows = (text) => {
    const rows = [];
    for (const part of text.split("/")) {
      if (part[0] === "=") {
        for (let n = part.length > 1 ? Number(part.slice(1)) : 1; n > 0; --n) rows.push(rows[rows.length - 1]);
        continue;
      }
      const row = new Row();
      for (const [, letter, cells] of part.matchAll(/([A-Z])(\d*)/g)) {
        row.add(kStates.indexOf(letter), cells === "" ? 1 : Number(cells));
      }
      rows.push(row);
    }
    return rows;
  };

  const stacked = (a, b) => {
    if (!b || a === b) return a;
    const row = new Row();
    for (let i = 0, j = 0, at = 0; i < a.ends.length;) {
      const end = Math.min(a.ends[i], b.ends[j]);
      row.add(joined(a.states[i], b.states[j]), end - at);
      at = end;
      if (a.ends[i] === end) ++i;
      if (b.ends[j] === end) ++j;
    }
    return row;
  };
  const halved = (row, columns) => {
    const half = new Row();
    for (let i = 0, at = 0; at < columns;) {
      while (row.ends[i] <= at) ++i;
      const whole = Math.floor((row.ends[i] - at) / 2);
      if (whole > 0) {
        half.add(row.states[i], whole);
        at += 2 * whole;
        continue;
      }
      half.add(at + 1 < columns ? joined(row.states[i], row.states[i + 1]) : row.states[i], 1);
      at += 2;
    }
    return half;
  };
  // Level n + 1 has a cell for 2 x 2 of level n.
  const pyramidOf = (rows, columns) => {
    const levels = [{ rows, columns }];
    for (let last = levels[0]; last.rows.length > 1 || last.columns > 1; last = levels[levels.length - 1]) {
      const next = [];
      for (let r = 0; r < last.rows.length; r += 2) {
        const same = r >= 2 && last.rows[r] === last.rows[r - 2] && last.rows[r + 1] === last.rows[r - 1];
        next.push(same ? next[next.length - 1] : halved(stacked(last.rows[r], last.rows[r + 1]), last.columns));
      }
      levels.push({ rows: next, columns: Math.ceil(last.columns / 2) });
    }
    return levels;
  };

  const kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

  class BlockMap {
    constructor(figure) {
      this.figure = figure;
      this.map = JSON.parse(figure.querySelector("script").textContent);
      this.levels = pyramidOf(parseRows(this.map.runs), this.map.columns);
      this.profiles();
      // In cells; the last one may be cut.
      [this.down, this.across] = this.map.axes.map((axis) => axis.length / (axis.block * this.map.scale));
      this.view = { x: 0, y: 0, width: this.across, height: this.down };
      this.pointer = null;
      this.build();
      redraw.push(() => this.draw());
      new ResizeObserver(() => this.draw()).observe(this.canvas);
    }

    // Cells that are not empty in each row and column.
    profiles() {
      const { rows, columns } = this.levels[0];
      this.ofRow = new Float64Array(rows.length);
      const change = new Float64Array(columns + 1);
      rows.forEach((row, r) => row.ends.forEach((end, i) => {
        if (row.states[i] === 0) return;
        const begin = i ? row.ends[i - 1] : 0;
        this.ofRow[r] += end - begin;
        ++change[begin];
        --change[end];
      }));
      this.ofColumn = new Float64Array(columns);
      let sum = 0;
      for (let c = 0; c < columns; ++c) this.ofColumn[c] = sum += change[c];
      this.mostOfRow = this.ofRow.reduce((a, b) => Math.max(a, b), 1);
      this.mostOfColumn = this.ofColumn.reduce((a, b) => Math.max(a, b), 1);
    }

    build() {
      const box = make("div", { class: "mapbox" });
      box.append(make("h3", {}, this.figure.querySelector("svg .title").textContent));
      for (const line of this.figure.querySelectorAll("svg .heading"))
        box.append(make("p", { class: "heading" }, line.textContent));
      const tools = make("div", { class: "tools" });
      const button = (label, title, action) => {
        const element = make("button", { type: "button", class: "tool", title }, label);
        element.addEventListener("click", action);
        tools.append(element);
      };
      button("+", "zoom in", () => this.zoom(2));
      button("\u2212", "zoom out", () => this.zoom(0.5));
      button("all", "show all blocks", () => this.showAll());
      // A finger that moves up and down scrolls the page.
      for (const [label, title, x, y] of [["\u2190", "left", -1, 0], ["\u2192", "right", 1, 0],
        ["\u2191", "up", 0, -1], ["\u2193", "down", 0, 1]]) {
        button(label, "move " + title, () => this.move(x / 2, y / 2));
        tools.lastChild.classList.add("touch");
      }
      tools.append(make("span", { class: "hint" },
        "ctrl + wheel or double click zooms, dragging moves; keys: arrows, +, \u2212, 0"));
      this.canvas = make("canvas", { tabindex: "0", role: "application",
        "aria-label": "map of blocks; the arrow keys move a cursor, whose block is told below" });
      this.readout = make("p", { class: "readout", "aria-live": "polite" });
      const legend = make("ul", { class: "legend" });
      this.swatches = [];
      [...kStates].forEach((letter, state) => {
        if (state >= this.map.names.length) return;
        const item = make("li");
        item.innerHTML = '<svg viewBox="0 0 10 10"><rect class="cell-' + letter +
          ' swatch" width="10" height="10"/><path class="mark" d="' + (kMarks[state] || "") + '"/></svg>';
        item.hidden = state !== kMixed && this.map.counts[state] === 0;
        const blocks = state === kMixed ? "" : " " + count(this.map.counts[state]);
        item.append(this.map.names[state] + blocks);
        if (state === kMixed) this.mixed = item;
        legend.append(item);
        this.swatches.push(item.querySelector("rect"));
      });
      const { scale, block, names } = this.map;
      const bars = make("p", { class: "more" }, "Bars: " + (scale > 1 ? "cells of " + scale + " x " + scale + " " : "") +
        block + "s other than \"" + names[0] + "\", at most " + count(this.mostOfRow) + " in a row and " +
        count(this.mostOfColumn) + " in a column.");
      box.append(tools, this.canvas, this.readout, legend, bars);
      this.figure.append(box);
      this.figure.classList.add("live");

      const canvas = this.canvas;
      let drag = null;
      canvas.addEventListener("pointerdown", (event) => {
        drag = { x: event.offsetX, y: event.offsetY, from: { ...this.view } };
        if (event.isTrusted) canvas.setPointerCapture(event.pointerId);
        this.point(event.offsetX, event.offsetY);
      });
      canvas.addEventListener("pointerup", () => { drag = null; });
      canvas.addEventListener("pointercancel", () => { drag = null; });
      canvas.addEventListener("pointermove", (event) => {
        if (drag && event.buttons) {
          const plot = this.plot();
          this.view.x = drag.from.x - (event.offsetX - drag.x) / plot.width * this.view.width;
          if (event.pointerType === "mouse")
            this.view.y = drag.from.y - (event.offsetY - drag.y) / plot.height * this.view.height;
          this.clamp();
        }
        this.point(event.offsetX, event.offsetY);
      });
      canvas.addEventListener("pointerleave", (event) => {
        if (event.pointerType === "touch") return;  // what a finger has touched stays told
        this.pointer = null;
        this.draw();
      });
      canvas.addEventListener("dblclick", (event) => this.zoom(event.shiftKey ? 0.5 : 2, event));
      canvas.addEventListener("wheel", (event) => {
        if (!event.ctrlKey && !event.metaKey) return;
        event.preventDefault();
        this.zoom(event.deltaY < 0 ? 1.25 : 0.8, event);
      }, { passive: false });
      canvas.addEventListener("keydown", (event) => {
        const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
        if (event.ctrlKey || event.metaKey || event.altKey) return;
        if (event.key in steps) this.step(...steps[event.key]);
        else if (event.key === "+" || event.key === "=") this.zoom(2);
        else if (event.key === "-") this.zoom(0.5);
        else if (event.key === "0") this.showAll();
        else return;
        event.preventDefault();
      });
    }

    // Where the map is on the canvas, in CSS pixels: beside it ticks and the profiles.
    plot() {
      const width = Math.max(this.canvas.clientWidth || 600, 200);
      const left = Math.max(64, 28 + 7 * count(this.map.axes[0].length).length);
      const top = 6, side = width < 500 ? 36 : 72, gap = 6, below = 36;
      const inner = width - left - side - gap;
      const [rows, columns] = this.map.axes.map((axis) => axis.length);
      const height = Math.round(Math.min(inner * Math.max(rows / columns, 1 / 4), 620));
      const narrow = Math.min(inner, height * Math.max(columns / rows, 1 / 4));
      return { left, top, side, gap, below, width: Math.round(narrow), height, all: width };
    }

    level() {
      const plot = this.plot(), ratio = devicePixelRatio || 1;
      const cell = Math.min(plot.width / this.view.width, plot.height / this.view.height) * ratio;
      const level = Math.max(0, Math.ceil(Math.log2(1 / cell)));
      return Math.min(level, this.levels.length - 1);
    }

    clamp() {
      const { view, across, down } = this;
      view.width = Math.min(view.width, across);
      view.height = Math.min(view.height, down);
      view.x = Math.min(Math.max(view.x, 0), across - view.width);
      view.y = Math.min(Math.max(view.y, 0), down - view.height);
    }

    // By shares of what is seen.
    move(x, y) {
      this.view.x += x * this.view.width;
      this.view.y += y * this.view.height;
      this.clamp();
      this.draw();
    }

    showAll() {
      this.view = { x: 0, y: 0, width: this.across, height: this.down };
      this.draw();
    }

    // About the point of an event, the cursor, or the middle.
    zoom(factor, event) {
      const plot = this.plot(), view = this.view;
      let x = 0.5, y = 0.5;
      if (event) {
        x = (event.offsetX - plot.left) / plot.width;
        y = (event.offsetY - plot.top) / plot.height;
      } else if (this.pointer) {
        x = (this.pointer.x - view.x) / view.width;
        y = (this.pointer.y - view.y) / view.height;
      }
      x = Math.min(Math.max(x, 0), 1);
      y = Math.min(Math.max(y, 0), 1);
      const width = Math.max(view.width / factor, Math.min(4, this.map.columns));
      const height = Math.max(view.height / factor, Math.min(4, this.map.rows));
      this.view = { x: view.x + x * (view.width - width), y: view.y + y * (view.height - height), width, height };
      this.clamp();
      this.draw();
    }

    point(offsetX, offsetY) {
      this.readout.setAttribute("aria-live", "off");  // a pointer would have it speak all the time
      const plot = this.plot(), view = this.view;
      const x = view.x + (offsetX - plot.left) / plot.width * view.width;
      const y = view.y + (offsetY - plot.top) / plot.height * view.height;
      // Over a profile the other coordinate is what it was.
      const within = (value, begin, length) => value >= begin && value < begin + length;
      const inX = within(x, view.x, view.width), inY = within(y, view.y, view.height);
      const last = this.pointer || { x: view.x + view.width / 2, y: view.y + view.height / 2 };
      this.pointer = inX || inY ? { x: inX ? x : last.x, y: inY ? y : last.y } : null;
      this.draw();
    }

    step(dx, dy) {
      this.readout.setAttribute("aria-live", "polite");
      const size = 2 ** this.level(), view = this.view;
      const at = this.pointer || { x: view.x, y: view.y };
      const { rows, columns } = this.map;
      this.pointer = {
        x: Math.min(Math.max((Math.floor(at.x / size) + dx) * size + size / 2, 0), columns - 0.5),
        y: Math.min(Math.max((Math.floor(at.y / size) + dy) * size + size / 2, 0), rows - 0.5),
      };
      view.x = Math.min(Math.max(view.x, this.pointer.x + size / 2 - view.width), this.pointer.x - size / 2);
      view.y = Math.min(Math.max(view.y, this.pointer.y + size / 2 - view.height), this.pointer.y - size / 2);
      this.clamp();
      this.draw();
    }

    draw() {
      const canvas = this.canvas, plot = this.plot(), ratio = devicePixelRatio || 1;
      const height = plot.top + plot.height + plot.gap + 44 + plot.below;
      canvas.style.height = height + "px";
      canvas.width = Math.round(plot.all * ratio);
      canvas.height = Math.round(height * ratio);
      const style = getComputedStyle(root), color = (name) => style.getPropertyValue(name).trim();
      const context = canvas.getContext("2d");
      context.scale(ratio, ratio);
      const colors = this.swatches.map((swatch) => getComputedStyle(swatch).fill);
      const level = this.level(), size = 2 ** level, { rows, columns } = this.levels[level], view = this.view;
      const toX = (column) => plot.left + (column - view.x) / view.width * plot.width;
      const toY = (row) => plot.top + (row - view.y) / view.height * plot.height;
      const snap = (value) => Math.round(value * ratio) / ratio;

      context.save();
      context.beginPath();
      context.rect(plot.left, plot.top, plot.width, plot.height);
      context.clip();
      context.fillStyle = colors[0];
      context.fillRect(plot.left, plot.top, plot.width, plot.height);
      const cellWidth = size / view.width * plot.width, cellHeight = size / view.height * plot.height;
      const hatched = Math.min(cellWidth, cellHeight) >= 7 ? this.hatch(context, color("--paper")) : null;
      const firstRow = Math.floor(view.y / size), firstColumn = Math.floor(view.x / size);
      const endRow = Math.min(rows.length, Math.ceil((view.y + view.height) / size));
      const endColumn = Math.min(columns, Math.ceil((view.x + view.width) / size));
      let mixed = false;
      for (let r = firstRow; r < endRow; ++r) {
        const row = rows[r], y = snap(toY(r * size)), bottom = snap(toY((r + 1) * size));
        for (let i = row.find(firstColumn); i < row.ends.length; ++i) {
          const begin = i ? row.ends[i - 1] : 0;
          if (begin >= endColumn) break;
          const state = row.states[i];
          if (state === 0) continue;
          mixed = mixed || state === kMixed;
          const x = snap(toX(begin * size)), end = snap(toX(row.ends[i] * size));
          context.fillStyle = colors[state];
          context.fillRect(x, y, end - x, bottom - y);
          if (state === kPartial && hatched) {
            context.fillStyle = hatched;
            context.fillRect(x, y, end - x, bottom - y);
          }
          const last = hatched && kMarks[state] ? Math.min(row.ends[i], endColumn) : 0;
          for (let c = Math.max(begin, firstColumn); c < last; ++c) {
            context.save();
            context.translate(toX(c * size), y);
            context.scale(cellWidth / 10, cellHeight / 10);
            context.strokeStyle = color("--paper");
            context.lineWidth = 1.4;
            context.stroke(new Path2D(kMarks[state]));
            context.restore();
          }
        }
      }
      if (Math.min(cellWidth, cellHeight) > 8) {
        context.strokeStyle = color("--paper");
        context.lineWidth = 1;
        context.beginPath();
        for (let r = firstRow; r <= endRow; ++r) {
          context.moveTo(plot.left, snap(toY(r * size)));
          context.lineTo(plot.left + plot.width, snap(toY(r * size)));
        }
        for (let c = firstColumn; c <= endColumn; ++c) {
          context.moveTo(snap(toX(c * size)), plot.top);
          context.lineTo(snap(toX(c * size)), plot.top + plot.height);
        }
        context.stroke();
      }
      context.restore();
      this.mixed.hidden = !mixed;

      // The profiles: the heaviest row or column that begins in a pixel, or the one that fills it.
      const cell = this.cell(level);
      const bar = color("--bar"), accent = color("--accent");
      const heaviest = (values, begin, end) => {
        let most = 0;
        const first = Math.floor(begin);
        for (let i = first; i < Math.min(values.length, Math.max(Math.floor(end), first + 1)); ++i)
          most = Math.max(most, values[i]);
        return most;
      };
      for (let y = 0; y < plot.height; ++y) {
        const begin = view.y + y / plot.height * view.height, end = begin + view.height / plot.height;
        const length = heaviest(this.ofRow, begin, end) / this.mostOfRow * plot.side;
        context.fillStyle = cell && end > cell.row && begin < cell.row + size ? accent : bar;
        context.fillRect(plot.left + plot.width + plot.gap, plot.top + y, length, 1);
      }
      for (let x = 0; x < plot.width; ++x) {
        const begin = view.x + x / plot.width * view.width, end = begin + view.width / plot.width;
        const length = heaviest(this.ofColumn, begin, end) / this.mostOfColumn * 44;
        context.fillStyle = cell && end > cell.column && begin < cell.column + size ? accent : bar;
        context.fillRect(plot.left + x, plot.top + plot.height + plot.gap, 1, length);
      }

      context.strokeStyle = color("--quiet");
      context.lineWidth = 1;
      context.strokeRect(plot.left - 0.5, plot.top - 0.5, plot.width + 1, plot.height + 1);
      this.ticks(context, plot, color("--ink"));
      if (cell) {
        context.save();
        context.beginPath();
        context.rect(plot.left, plot.top, plot.width, plot.height);
        context.clip();
        context.strokeStyle = accent;
        context.lineWidth = 2;
        const x = toX(cell.column), y = toY(cell.row);
        const width = Math.min(cellWidth, plot.left + plot.width - x);
        const height = Math.min(cellHeight, plot.top + plot.height - y);
        context.strokeRect(x, y, Math.max(width, 3), Math.max(height, 3));
        context.restore();
      }
      this.tell(cell, size);
      this.figure.dataset.level = level;
      this.figure.dataset.zoom = (this.across / view.width).toFixed(2);
    }

    hatch(context, paper) {
      const tile = document.createElement("canvas");
      tile.width = tile.height = 6;
      const pen = tile.getContext("2d");
      pen.strokeStyle = paper;
      pen.globalAlpha = 0.6;
      pen.lineWidth = 1.2;
      pen.beginPath();
      for (const from of [-6, 0, 6]) { pen.moveTo(from, 6); pen.lineTo(from + 6, 0); }
      pen.stroke();
      return context.createPattern(tile, "repeat");
    }

    ticks(context, plot, ink) {
      context.fillStyle = ink;
      context.font = "11px sans-serif";
      const { scale, axes } = this.map, view = this.view;
      // Block boundaries in equal steps, and the end.
      const along = (axis, begin, length, pixels, least, put) => {
        const elements = axis.block * scale, first = begin * elements, last = (begin + length) * elements;
        const place = (at) => (at / elements - begin) / length * pixels;
        let step = axis.block;
        while (step / (length * elements) * pixels < least && step < axis.length) step *= 2;
        for (let at = Math.ceil(first / step) * step; at <= last && at < axis.length; at += step)
          if (at === 0 || place(axis.length) - place(at) >= least) put(at, place(at));
        if (axis.length <= last) put(axis.length, place(axis.length));
      };
      context.textAlign = "right";
      context.textBaseline = "middle";
      along(axes[0], view.y, view.height, plot.height, 28, (at, y) =>
        context.fillText(count(at), plot.left - 6, plot.top + Math.max(y, 4)));
      context.textAlign = "center";
      context.textBaseline = "top";
      const bottom = plot.top + plot.height + plot.gap + 46;
      const width = 12 + 7 * count(axes[1].length).length;
      along(axes[1], view.x, view.width, plot.width, width, (at, x) =>
        context.fillText(count(at), plot.left + x, bottom));
      context.fillText(axes[1].label, plot.left + plot.width / 2, bottom + 16);
      context.save();
      context.translate(10, plot.top + plot.height / 2);
      context.rotate(-Math.PI / 2);
      context.textBaseline = "middle";
      context.fillText(axes[0].label, 0, 0);
      context.restore();
    }

    // The cell under the pointer at a level: its first row and column, in cells of the finest level.
    cell(level) {
      if (!this.pointer) return null;
      const size = 2 ** level;
      const row = Math.floor(this.pointer.y / size), column = Math.floor(this.pointer.x / size);
      const at = this.levels[level].rows[Math.min(row, this.levels[level].rows.length - 1)];
      return { row: row * size, column: column * size, state: at.at(Math.min(column, this.levels[level].columns - 1)) };
    }

    tell(cell, size) {
      const { map } = this;
      if (!cell) {
        this.readout.textContent = count(map.blocks[0]) + " x " + count(map.blocks[1]) + " " + map.block + "s" +
          (map.scale > 1 ? "; the finest cell is " + map.scale + " x " + map.scale + " of them" : "");
        return;
      }
      const side = size * map.scale;
      const place = (axis, from, blocks) => {
        const begin = from * map.scale, end = Math.min(begin + side, blocks);
        const elements = [begin * axis.block, Math.min(end * axis.block, axis.length) - 1];
        const range = (a, b) => (a === b ? count(a) : count(a) + "\u2013" + count(b));
        return { begin, end, side,
          blocks: range(begin, end - 1), text: axis.name ? axis.name + " " + range(...elements) : "" };
      };
      const q = place(map.axes[0], cell.row, map.blocks[0]);
      const k = place(map.axes[1], cell.column, map.blocks[1]);
      const state = cell.state;
      const parts = [];
      if (q.text) parts.push(q.text + ", " + k.text);
      parts.push(map.block + (side > 1 ? "s" : "") + " (" + q.blocks + ", " + k.blocks + ")");
      parts.push(map.names[state]);
      const density = this.density(q, k, state);
      if (density) parts.push(density);
      const share = (n, all) => count(n) + " of " + count(all);
      if (size === 1 && map.scale === 1)
        parts.push("row has " + share(this.ofRow[cell.row], map.columns) + ", column " +
          share(this.ofColumn[cell.column], map.rows) + " that are not " + map.names[0]);
      this.readout.textContent = parts.join(" \u00b7 ");
    }

    // The share of elements that are True, of the very blocks or of those around them.
    density(q, k, state) {
      const { density } = this.map;
      if (!density) return "";
      if (state === 0 || state === kFull) return "density " + (state === 0 ? 0 : 100) + " %";
      const n = density.blocks;
      let sum = 0, area = 0;
      for (let r = Math.floor(q.begin / n); r * n < q.end; ++r)
        for (let c = Math.floor(k.begin / n); c * n < k.end; ++c) {
          const at = 3 * (r * density.columns + c);
          let value = 0;
          for (const digit of density.values.slice(at, at + 3)) value = value * 64 + kDigits.indexOf(digit);
          const span = (axis, i) => Math.min((i + 1) * n * axis.block, axis.length) - i * n * axis.block;
          const weight = span(this.map.axes[0], r) * span(this.map.axes[1], c);
          sum += value / kMostShare * weight;
          area += weight;
        }
      if (area === 0) return "";
      return "density " + percent(sum / area) + (q.side < n ? " in the " + n + " x " + n + " around" : "");
    }
  }

  // In as many digits as tell it from none and all.
  function percent(share) {
    const p = 100 * share, distance = Math.min(p, 100 - p);
    if (share === 0 || share === 1) return p + " %";
    if (distance < 0.0005) return p < 50 ? "< 0.001 %" : "> 99.999 %";
    let digits = 1;
    for (let d = distance; d < 0.9995 && digits < 4; d *= 10) ++digits;
    return p.toFixed(digits) + " %";
  }

  for (const figure of document.querySelectorAll("figure.map")) new BlockMap(figure);
  setTheme("system");
})();
