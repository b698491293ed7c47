// Weights and vectors as images of one pixel for each number, which style.css makes larger.

/** A triangle: row t is the token that reads, column s the one it reads. `row(t)` has numbers from 0 to 1; their
 * square root is shown, so that small ones can be seen. @param {(t: number) => number[]} row */
export function paint(element, T, row) {
  const { image, done } = pixels(element, T, T), accent = colour(element, "--accent");
  for (let t = 0; t < T; t += 1) {
    row(t).forEach((weight, s) => image.set([...accent, Math.round(255 * Math.sqrt(weight))], 4 * (t * T + s)));
  }
  done();
}

/** A row of numbers, of which `most` has the full colour. */
export function strip(element, values, most) {
  const { image, done } = pixels(element, values.length, 1);
  const above = colour(element, "--accent"), below = colour(element, "--bad");
  values.forEach((x, i) => {
    image.set([...(x < 0 ? below : above), Math.round((255 * Math.abs(x)) / (most || 1))], 4 * i);
  });
  done();
}

/** @param {HTMLCanvasElement} element @param {number} width @param {number} height */
function pixels(element, width, height) {
  element.width = width;
  element.height = height;
  const context = element.getContext("2d"), image = context.createImageData(width, height);
  return { image: image.data, done: () => context.putImageData(image, 0, 0) };
}

/** A colour of style.css as numbers. */
function colour(element, name) {
  const hex = getComputedStyle(element).getPropertyValue(name).trim();
  return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
}

/** Which cell of a painted triangle an event is at: [t, s]. @returns {[number, number]} */
export function cellAt(element, event, T) {
  const box = element.getBoundingClientRect();
  const place = (value, size) => Math.max(0, Math.min(T - 1, Math.floor((value / size) * T)));
  return [place(event.clientY - box.top, box.height), place(event.clientX - box.left, box.width)];
}
