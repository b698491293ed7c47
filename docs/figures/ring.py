"""Chapter 11: an all-reduce around a ring, by which four devices sum an array that each has a version of.

The array is cut into as many parts as there are devices. In each of n - 1 turns every device passes one part
to its neighbour, which adds its own; then each has one part of the sum, and n - 1 turns more pass those
around.
"""

import numpy as np

from docs.figures import BLUE, GREEN, GREY, LIGHT, ORANGE, canvas, save, tile, write

N = 4  # devices
COLORS = (BLUE, ORANGE, GREEN, "#8a5fb0")  # of the parts
COLUMN, ROW, WIDE = 100, 66, 84  # from one turn to the next, from one device to the next, and of an array


def draw(axes) -> None:
    canvas(axes, 70 + (2 * N - 1) * COLUMN, N * ROW + 40)
    axes.invert_yaxis()
    for words, turn in (("turns 1 to 3: sum as you pass on", 2), ("turns 4 to 6: pass on the sums", N + 1)):
        write(axes, 70 + turn * COLUMN + WIDE / 2, 8, words)
    terms = np.ones((N, N), int)  # how many devices' versions a device's part is the sum of
    for turn in range(2 * N - 1):
        x = 70 + turn * COLUMN
        write(axes, x + WIDE / 2, 28, f"after turn {turn}" if turn else "at first", GREY)
        for device in range(N):
            fresh = (device - turn) % N  # the part that came in this turn, and goes on in the next
            for part in range(N):
                y = 40 + device * ROW + part * 13
                tile(axes, x, y, WIDE, 11, LIGHT, alpha=0.4)
                pale = 1 if part == fresh else 0.4
                tile(axes, x, y, WIDE * terms[device, part] / N, 11, COLORS[part], alpha=pale)
        for device in range(N):
            part, to = (device - turn) % N, (device + 1) % N
            terms[to, part] = min(N, terms[to, part] + terms[device, part])
    for device in range(N):
        write(axes, 0, 66 + device * ROW, f"device {device}", GREY, "left")


if __name__ == "__main__":
    save("ring", draw, width=8, height=3)
