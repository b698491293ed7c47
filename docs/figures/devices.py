"""Chapter 11: the parts of a matrix and of a batch that eight devices hold, on four meshes.

docs/interactive/devices.html draws the same for any mesh.
"""

import numpy as np

from docs.figures import BLUE, LIGHT, ORANGE, canvas, save, tile, write

AXES = ("data", "fsdp", "tensor")
MESHES = ((8, 1, 1), (1, 8, 1), (2, 1, 4), (2, 2, 2))
DEVICE, ROW, HIGH = 80, 84, 40  # from one device to the next, from one mesh to the next, and of both arrays
MATRIX, BATCH = 38, 22  # widths


def draw(axes) -> None:
    canvas(axes, 8 * DEVICE, len(MESHES) * ROW + 20)
    axes.invert_yaxis()
    for x, color, text in ((0, BLUE, "a matrix (D, F)"), (130, ORANGE, "the rows of the batch")):
        tile(axes, x, 5, 10, 10, color)
        write(axes, x + 15, 10, text, align="left")
    for i, mesh in enumerate(MESHES):
        y = 20 + i * ROW
        name = ",".join(f"{axis}:{size}" for axis, size in zip(AXES, mesh, strict=True) if size > 1)
        write(axes, 0, y + 26, f"--mesh={name}", align="left", weight="bold")
        for device, place in enumerate(np.ndindex(mesh)):
            draw_device(axes, device * DEVICE, y + 38, mesh, place)


def draw_device(axes, x: float, y: float, mesh: tuple[int, ...], place: tuple[int, ...]) -> None:
    """Draw the parts of the device at a place of the mesh: fsdp cuts a matrix's rows, tensor its columns."""
    (n_data, n_fsdp, n_tensor), (data, fsdp, tensor) = mesh, place
    wide, high = MATRIX / n_tensor, HIGH / n_fsdp
    tile(axes, x, y, MATRIX, HIGH, LIGHT, alpha=0.4)
    tile(axes, x + tensor * wide, y + fsdp * high, wide, high, BLUE)
    left, rows = x + MATRIX + 5, HIGH / (n_data * n_fsdp)
    tile(axes, left, y, BATCH, HIGH, LIGHT, alpha=0.4)
    tile(axes, left, y + (data * n_fsdp + fsdp) * rows, BATCH, rows, ORANGE)


if __name__ == "__main__":
    save("devices", draw, height=4)
