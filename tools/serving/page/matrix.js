// Numbers as images of one pixel for each, which style.css makes larger.

/** Paint rows of numbers from -1 to 1: the larger, the more of a colour; there is another for those below 0.
 * @param {HTMLCanvasElement} element @param {number} width @param {number[][]} rows */
export function paint(element, width, rows) {
  element.width = width;
  element.height = rows.length;
  const context = element.getContext("2d"), image = context.createImageData(width, rows.length);
  const [above, below] = [colour(element, "--accent"), colour(element, "--bad")];
  for (const [y, row] of rows.entries()) {
    row.forEach((value, x) => {
      image.data.set([...(value < 0 ? below : above), Math.round(255 * Math.abs(value))], 4 * (y * width + x));
    });
  }
  context.putImageData(image, 0, 0);
}

/** A colour of style.css as numbers. */
function colour(element, name) {
  const hex = getComputedStyle(element).getPropertyValue(name).trim();
  return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
}

/** Which cell of a painted square an event is at: [t, s]. @returns {[number, number]} */
export function cellAt(element, event, T) {
  const box = element.getBoundingClientRect();
  const place = (value, size) => Math.max(0, Math.min(T - 1, Math.floor((value / size) * T)));
  return [place(event.clientY - box.top, box.height), place(event.clientX - box.left, box.width)];
}
