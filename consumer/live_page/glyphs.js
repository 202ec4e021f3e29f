// Glyphs of states: each has a shape of its own, so that no meaning rests on colour alone.

/** Colours by tone, from the stylesheet of the present theme. */
export function palette() {
  const style = getComputedStyle(document.documentElement);
  const names = ["serving", "standby", "starting", "cutoff", "failed", "unassigned", "degraded", "disabled", "lag", "focus", "fresh", "paper"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** Draw a glyph into a square of `size` at x, y. */
export function drawGlyph(context, glyph, x, y, size, colour) {
  const middle = size / 2;
  context.fillStyle = context.strokeStyle = colour;
  context.lineWidth = Math.max(1.5, size / 6);
  context.beginPath();
  if (glyph === "square") {
    context.fillRect(x, y, size, size);
  } else if (glyph === "half") {
    context.strokeRect(x + 1, y + 1, size - 2, size - 2);
    context.fillRect(x, y + middle, size, middle);
  } else if (glyph === "disc" || glyph === "ring") {
    context.arc(x + middle, y + middle, middle - (glyph === "ring" ? 1 : 0.5), 0, 2 * Math.PI);
    if (glyph === "disc") context.fill();
    else context.stroke();
  } else if (glyph === "cross") {
    context.moveTo(x + 1, y + 1);
    context.lineTo(x + size - 1, y + size - 1);
    context.moveTo(x + size - 1, y + 1);
    context.lineTo(x + 1, y + size - 1);
    context.stroke();
  } else if (glyph === "dash") {
    context.moveTo(x + 1, y + middle);
    context.lineTo(x + size - 1, y + middle);
    context.stroke();
  } else if (glyph === "chevron") {
    context.moveTo(x + 1, y + size - 2);
    context.lineTo(x + middle, y + 2);
    context.lineTo(x + size - 1, y + size - 2);
    context.stroke();
  } else {
    const corners = { triangle: [[0.5, 0], [1, 1], [0, 1]], diamond: [[0.5, 0], [1, 0.5], [0.5, 1], [0, 0.5]] }[glyph];
    for (const [dx, dy] of corners) context.lineTo(x + dx * size, y + dy * size);
    context.fill();
  }
}
