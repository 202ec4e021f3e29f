// Parts of the views: the canvas of a member's replicas, a windowed table, a chart, a glyph.

import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendored/preact-htm.js";
import { lagStep } from "./cluster.js";
import { drawGlyph, palette } from "./glyphs.js";

const CELL = 13;
const PITCH = 18;
const ROW_HEIGHT = 28;
const ROWS_BEYOND = 6;
/** The least top of a chart, bytes or bytes a second: little must not look like much. */
const SCALE_MIN = 1024;
/** The least width of a chart, seconds: a series that has just begun needs an axis, too. */
const WIDTH_SECONDS_MIN = 60;
const CHART_HEIGHT = 150;

/** A state's glyph beside text. */
export function Glyph({ glyph, tone, theme }) {
  const canvas = useRef(null);
  useLayoutEffect(() => {
    const context = scaled(canvas.current, CELL + 2, CELL + 2);
    drawGlyph(context, glyph, 1, 1, CELL, palette()[tone]);
  }, [glyph, tone, theme]);
  return html`<canvas class="glyph" ref=${canvas} aria-hidden="true"></canvas>`;
}

function scaled(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.ceil(width * ratio);
  canvas.height = Math.ceil(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  return context;
}

/**
 * One member's replicas as a grid of glyphs on one canvas, however many there are.
 * Arrow keys move a cursor, Enter opens a shard.
 */
export function ReplicaGrid({ cells, label, isShown, isFresh, lagOf, selected, onOpen, onPoint, theme, version }) {
  const canvas = useRef(null);
  const [width, setWidth] = useState(0);
  const [cursor, setCursor] = useState(-1);
  const columns = Math.max(1, Math.floor(width / PITCH));
  const rows = Math.ceil(cells.length / columns);

  useLayoutEffect(() => {
    const parent = canvas.current.parentElement;
    const observer = new ResizeObserver(() => setWidth(parent.clientWidth));
    observer.observe(parent);
    setWidth(parent.clientWidth);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    if (!width) return;
    const context = scaled(canvas.current, width, Math.max(1, rows) * PITCH);
    const colours = palette();
    cells.forEach((cell, index) => {
      const x = (index % columns) * PITCH + 2;
      const y = Math.floor(index / columns) * PITCH + 2;
      context.globalAlpha = isShown(cell.row) ? 1 : 0.15;
      drawGlyph(context, cell.replica.glyph, x, y, CELL - 2, colours[cell.replica.tone]);
      // Marks of lag: their number tells how much, not their colour.
      context.fillStyle = colours.lag;
      const step = lagStep(lagOf(cell) ?? 0);
      for (let mark = 0; mark < step; mark += 1) context.fillRect(x + mark * 3, y + CELL - 1, 2, 3);
      const frame = index === cursor || cell.row.id === selected ? colours.focus : isFresh(cell) ? colours.fresh : "";
      if (frame) {
        context.globalAlpha = 1;
        context.strokeStyle = frame;
        context.lineWidth = 2;
        context.strokeRect(x - 1.5, y - 1.5, PITCH - 3, PITCH - 2);
      }
    });
  }, [cells, width, cursor, selected, theme, version]);

  const at = (event) => {
    const box = canvas.current.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / PITCH);
    const index = Math.floor((event.clientY - box.top) / PITCH) * columns + column;
    return column < columns && index < cells.length ? index : -1;
  };
  const onKeyDown = (event) => {
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, Home: -Infinity, End: Infinity };
    if (event.key === "Enter" && cells[cursor]) onOpen(cells[cursor].row.id);
    if (!(event.key in steps)) return;
    event.preventDefault();
    const next = Math.min(cells.length - 1, Math.max(0, Math.max(cursor, 0) + (cursor < 0 ? 0 : steps[event.key])));
    setCursor(next);
    onPoint(cells[next] ?? null);
  };
  // The holder has no padding, so its width is the canvas's.
  return html`<div><canvas class="grid" ref=${canvas} tabindex="0" role="application" aria-label=${label}
    onKeyDown=${onKeyDown}
    onBlur=${() => {
      setCursor(-1);
      onPoint(null);
    }}
    onMouseMove=${(event) => onPoint(cells[at(event)] ?? null)}
    onMouseLeave=${() => onPoint(null)}
    onClick=${(event) => {
      const index = at(event);
      if (index >= 0) onOpen(cells[index].row.id);
    }}></canvas></div>`;
}

/**
 * A table whose rows are in the document only where they can be seen.
 * @param columns {key, title, track (of the CSS grid), cell(row), order(row)?}
 */
export function Table({ name, columns, rows, keyOf, onOpen, selected, ordered }) {
  const body = useRef(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const [cursor, setCursor] = useState(0);
  const [order, setOrder] = useState(ordered ?? null);
  const shown = order ? sorted(rows, columns, order) : rows;
  const last = shown.length - 1;
  const first = Math.max(0, Math.floor(view.top / ROW_HEIGHT) - ROWS_BEYOND);
  const end = Math.min(shown.length, Math.ceil((view.top + view.height) / ROW_HEIGHT) + ROWS_BEYOND);

  useLayoutEffect(() => {
    const observer = new ResizeObserver(() => setView({ top: body.current.scrollTop, height: body.current.clientHeight }));
    observer.observe(body.current);
    return () => observer.disconnect();
  }, []);
  const goTo = (index) => {
    const next = Math.min(last, Math.max(0, index));
    setCursor(next);
    const { scrollTop, clientHeight } = body.current;
    if (next * ROW_HEIGHT < scrollTop) body.current.scrollTop = next * ROW_HEIGHT;
    if ((next + 1) * ROW_HEIGHT > scrollTop + clientHeight) body.current.scrollTop = (next + 1) * ROW_HEIGHT - clientHeight;
  };
  const onKeyDown = (event) => {
    const page = Math.max(1, Math.floor(view.height / ROW_HEIGHT) - 1);
    const targets = { ArrowDown: cursor + 1, ArrowUp: cursor - 1, PageDown: cursor + page, PageUp: cursor - page, Home: 0, End: last };
    if (event.key === "Enter" && shown[cursor] && onOpen) onOpen(shown[cursor]);
    if (!(event.key in targets)) return;
    event.preventDefault();
    goTo(targets[event.key]);
  };
  const sortBy = (column) => {
    setOrder(order?.key !== column.key ? { key: column.key, down: false } : order.down ? null : { key: column.key, down: true });
  };
  const tracks = columns.map((column) => column.track ?? "1fr").join(" ");
  const idOf = (index) => `${name}-row-${index}`;
  return html`<div class="table" role="grid" aria-label=${name} aria-rowcount=${shown.length + 1} style=${{ "--tracks": tracks }}>
    <div class="row head" role="row">
      ${columns.map((column) => html`<div role="columnheader" key=${column.key}
        aria-sort=${order?.key === column.key ? (order.down ? "descending" : "ascending") : "none"}>
        ${column.order
          ? html`<button type="button" onClick=${() => sortBy(column)}>${column.title}${order?.key === column.key ? (order.down ? " ▼" : " ▲") : ""}</button>`
          : column.title}
      </div>`)}
    </div>
    <div class="body" ref=${body} tabindex="0" onKeyDown=${onKeyDown}
      aria-activedescendant=${cursor >= first && cursor < end ? idOf(cursor) : undefined}
      onScroll=${() => setView({ top: body.current.scrollTop, height: body.current.clientHeight })}>
      <div class="all" style=${{ height: `${shown.length * ROW_HEIGHT}px` }}>
        ${shown.slice(first, end).map((row, offset) => {
          const index = first + offset;
          return html`<div key=${keyOf(row)} id=${idOf(index)} role="row" aria-rowindex=${index + 2}
            aria-selected=${keyOf(row) === selected} class=${`row ${index === cursor ? "cursor" : ""}`}
            style=${{ transform: `translateY(${index * ROW_HEIGHT}px)` }}
            onClick=${() => { setCursor(index); onOpen?.(row); }}>
            ${columns.map((column) => html`<div role="gridcell" key=${column.key}>${column.cell(row)}</div>`)}
          </div>`;
        })}
      </div>
    </div>
    ${shown.length ? "" : html`<p class="empty">Nothing to show.</p>`}
  </div>`;
}

function sorted(rows, columns, order) {
  const column = columns.find((each) => each.key === order.key);
  const factor = order.down ? -1 : 1;
  return rows
    .map((row) => [column.order(row), row])
    .sort(([a], [b]) => (a < b ? -factor : a > b ? factor : 0))
    .map(([, row]) => row);
}

/** From when to when a chart goes, seconds: it ends with the last sample, or now if there is none yet. */
export function timeRange(first, last) {
  const end = last ?? Date.now() / 1000;
  return [Math.min(first ?? end, end - WIDTH_SECONDS_MIN), end];
}

/** A chart of one number over time. */
export function Chart({ columns, label, format, theme }) {
  const holder = useRef(null);
  const chart = useRef(null);
  useEffect(() => {
    const style = getComputedStyle(document.documentElement);
    const axis = { stroke: style.getPropertyValue("--ink"), grid: { stroke: style.getPropertyValue("--line"), width: 1 }, ticks: { show: false } };
    const options = {
      width: holder.current.clientWidth || 300,
      height: CHART_HEIGHT,
      legend: { show: false },
      cursor: { y: false },
      scales: {
        x: { range: (_, first, last) => timeRange(first, last) },
        y: { range: (_, least, most) => [0, Math.max(SCALE_MIN, (most || 0) * 1.1)] },
      },
      axes: [
        { ...axis, space: 90, values: (_, times) => times.map((time) => new Date(time * 1000).toLocaleTimeString()) },
        { ...axis, size: 80, values: (_, values) => values.map(format) },
      ],
      series: [{}, { label, stroke: style.getPropertyValue("--serving"), width: 2, points: { show: (drawn) => drawn.data[0].length < 3 } }],
    };
    chart.current = new uPlot(options, columns, holder.current);
    const observer = new ResizeObserver(() => chart.current.setSize({ width: holder.current.clientWidth, height: CHART_HEIGHT }));
    observer.observe(holder.current);
    return () => {
      observer.disconnect();
      chart.current.destroy();
    };
  }, [theme, label]);
  useEffect(() => chart.current?.setData(columns), [columns[0].at(-1), columns[0].length]);
  return html`<div class="chart" ref=${holder} role="img" aria-label=${label}></div>`;
}
